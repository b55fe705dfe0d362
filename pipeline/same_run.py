"""The proof that a later call continues the same run: its plan beside what its output folder holds."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lineage.index.names import RUN_FILE
from lineage.index.output_index import INDEX_FILE, part_name
from lineage.index.parsed_texts import facts_name, texts_name
from lineage.recipe import RecipeError, parse_table
from lineage.storage.folder import Folder
from lineage.storage.lock import LEASE_FILE
from lineage.store.checksum_update import WORK
from lineage.store.work import PLAN, clear_work
from pipeline.plan import GAVE_UP, REVISIONS, UNIT_MARKER, RunPlan, shaping_keys
from pipeline.recipe.load import differing_keys
from pipeline.recipe.tables import PipelineRecipe, tables_of
from pipeline.results.estimates import PREDICTION_FILE
from pipeline.results.run_summary import read_summary
from pipeline.terminal import counted
from stages.steps.catalogue import CATALOGUE

_OF_UNITS = ("documents", "texts")
"""Where the reading of an input file publishes besides its unit's folder: whole files without a row, if no
document was read."""


def check_same_run(
    plan: RunPlan, say: Callable[[str], None] = lambda line: None, *, trial: bool = False
) -> bool:
    """Compare `plan` with what its output folder holds, and record it there if the folder is new. True if the
    run is finished already. RecipeError names every difference; where the run that is there has read no
    document yet, nothing can be lost: `plan` takes its place, which `say` is told. It does so too where that
    run ended at limits.max_bad_records or the like, and keeps what was read of inputs as this one reads it. A
    `trial`
    takes the place of an earlier one that differs."""
    out = plan.out
    if trial:
        _clear_other_trial(plan)
    if out.exists(INDEX_FILE):
        out.sync_all(
            WORK
        )  # what the index names is on the disk before the work that could make it again goes
        # A kill after the index was published may have left some of it, and the folder that the index was
        # written in: whichever run is asked for now, nobody needs them.
        clear_work(out)
        out.drop_dead(INDEX_FILE)
        if found := _differences(plan, read_summary(out).identity, compare_versions=False):
            raise RecipeError(_refusal(plan, "a finished run", found))
        return True
    if out.exists(PLAN):
        recorded = json.loads(out.read(PLAN))
        found = _differences(plan, recorded, compare_versions=True)
        gave_up = out.exists(GAVE_UP)
        if not found:
            if gave_up:
                out.remove(GAVE_UP)
            return False
        if gave_up:
            num_kept = _keep_units(out, plan)
            out.publish(PLAN, json.dumps(plan.identity, sort_keys=True, indent=1).encode())
            out.remove(GAVE_UP)
            say(
                f"{out.url}: the run there stopped after reading; it goes on with what was read of"
                f" {num_kept:,} of {counted(plan.num_files, 'input file')}, and with other inputs or settings:"
                f"{_listed(found)}"
            )
            return False
        if _has_read(out, recorded["recipe"]):
            markers = [name for name in out.names("work/units") if name.endswith(f"/{UNIT_MARKER}")]
            read = [json.loads(out.read(name)) for name in markers]
            num_read = sum(len(found.get("files", ())) or 1 for found in read if "span" not in found)
            there = (
                f"a run that has read {num_read:,} of its {counted(len(recorded['inputs']), 'input file')}"
            )
            raise RecipeError(_refusal(plan, there, found))
        # The markers first, which vouch for the other files; the plan, which says whose they are, last.
        for name in [name for folder in ("work/units", *_OF_UNITS) for name in out.names(folder)]:
            out.remove(name)
        clear_work(out)
        say(
            f"{out.url}: the run there had read no document, so it begins anew with other"
            f" settings:{_listed(found)}"
        )
    elif out.exists(RUN_FILE) and not _was_purged(out):
        # All was published and the index lost: the same run writes the same files.
        if found := _differences(plan, read_summary(out).identity, compare_versions=True):
            raise RecipeError(_refusal(plan, "a run whose index is lost", found))
        out.publish(PLAN, json.dumps(plan.identity, sort_keys=True, indent=1).encode())
        return False
    strangers = [name for name in out.names() if name not in (LEASE_FILE, PREDICTION_FILE)]
    if strangers:
        raise RecipeError(
            f"run.output = {out.url!r} is not empty (it holds {strangers[0]!r}) and holds no run:"
            " name a new folder, or empty this one"
        )
    out.publish(PLAN, json.dumps(plan.identity, sort_keys=True, indent=1).encode())
    return False


def _clear_other_trial(plan: RunPlan) -> None:
    """Remove what an earlier trial with other settings or inputs left, if every source of it was limited as
    one of a trial is. Killed on the way it has no index, and a plan that differs still: the next call ends
    it."""
    out = plan.out
    is_finished = out.exists(INDEX_FILE)
    if not is_finished and not out.exists(PLAN):
        return
    recorded = read_summary(out).identity if is_finished else json.loads(out.read(PLAN))
    found = _differences(plan, recorded, compare_versions=True)
    if not found:
        return
    # One that was purged stays as it is: the next trial might bring back what that took.
    if _was_purged(out) or not all(
        source.get("limit" if "index" in source else "limit_documents")
        for source in recorded["recipe"]["source"]
    ):
        raise RecipeError(_refusal(plan, "another run" if is_finished else "an unfinished run", found))
    if is_finished:
        out.publish(PLAN, json.dumps(recorded, sort_keys=True, indent=1).encode())
        out.remove(INDEX_FILE)
    # What vouches for other files lies in work/, and goes first.
    names = sorted(out.names(), key=lambda name: not name.startswith("work/"))
    for name in names:
        if name not in (PLAN, LEASE_FILE):
            out.remove(name)
    out.remove(PLAN)


def _was_purged(out: Folder) -> bool:
    """Whether a purge wrote to the output: a run that wrote it again would bring back what that took."""
    return bool([name for name in out.names("lineage/purged") if name.endswith(".parquet")])


def _keep_units(out: Folder, plan: RunPlan) -> int:
    """Remove what the plan that is there made and this one does not make so; how many files' reading is
    kept."""
    read = set(out.names("work/units"))
    kept = [unit for unit in plan.units if unit.marker in read]
    folders = {unit.folder for unit in kept}
    files = {
        name
        for unit in kept
        for name in (
            part_name("documents", unit.source, unit.file_index),
            texts_name(unit.source, unit.file_index),
            facts_name(unit.source, unit.file_index),
        )
    }
    # The markers first, which vouch for the other files.
    for name in sorted(read, key=lambda name: not name.endswith(f"/{UNIT_MARKER}")):
        if posixpath.dirname(name) not in folders:
            out.remove(name)
    for name in [name for folder in _OF_UNITS for name in out.names(folder)]:
        if name not in files:
            out.remove(name)
    return sum(len(unit.inputs) for unit in kept)


def _has_read(out: Folder, recipe: Mapping[str, Any]) -> bool:
    """Whether an unfinished run of this plain recipe has anything that is worth keeping: a document of an
    input file that was read whole, as its unit's marker counts them, or what models answered. (What a kill
    left of other files is of no use to a later call.)"""
    names = out.names("work/units")
    if recipe["classifier"] or recipe["step"]:
        return bool(names)
    return any(
        json.loads(out.read(name))["num_documents"] for name in names if name.endswith(f"/{UNIT_MARKER}")
    )


def _refusal(plan: RunPlan, there: str, found: Sequence[str]) -> str:
    return (
        f"{plan.out.url} holds {there}, with other settings or inputs; it cannot be continued with these:"
        f"{_listed(found)}\nRestore them, or name another run.output."
    )


def _listed(found: Sequence[str]) -> str:
    more = [f"and {len(found) - 20} more"] if len(found) > 20 else []
    return "".join(f"\n  {line}" for line in [*found[:20], *more])


def _differences(plan: RunPlan, recorded: Mapping[str, Any], *, compare_versions: bool) -> list[str]:
    """In what a plan and a recorded one differ, a line each. Without `compare_versions` the recorded one is
    finished, and may be of a version with fewer keys and steps: they count as their defaults, so that a key that is
    added later does not make every finished output another run."""
    ours = json.loads(json.dumps(plan.identity))
    recipes = ours["recipe"], recorded["recipe"]
    if not compare_versions:
        with suppress(RecipeError):  # a key that this version does not have: the comparison names it
            recipes = _with_every_key(recipes[0]), _with_every_key(recipes[1])
    found = differing_keys(*recipes)
    for what in (REVISIONS, "inputs", "files", "outputs", *(["versions"] if compare_versions else [])):
        found += _differing_entries(what, ours.get(what, {}), recorded.get(what, {}))
    return found


def _with_every_key(recipe: Mapping[str, object]) -> dict[str, object]:
    """A recorded recipe with every key that this version has, and without steps that do nothing by it;
    RecipeError where it has others."""
    parsed = parse_table(PipelineRecipe, recipe)
    tables = tables_of(parsed)
    filled = shaping_keys(parsed)
    for source in filled["source"]:
        source["steps"] = [
            name for name in source["steps"] if name not in CATALOGUE or CATALOGUE[name].is_on(tables)
        ]
    return filled


def _differing_entries(what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Sequence[str]:
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in theirs:
            found.append(f"{what}: {name} is new")
        elif name not in ours:
            found.append(f"{what}: {name} is gone")
        elif ours[name] != theirs[name]:
            found.append(f"{what}: {name} has changed (was {theirs[name]}, is {ours[name]})")
    return found
