"""What else may hold the documents, which no certificate covers: as far as anything that is recorded tells."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.trace.exposure import TrainingRun
from trainer.attempts import attempts
from trainer.checkpoint.store import DAMAGED, SET_ASIDE, checkpoints_set_aside, damaged_checkpoints
from trainer.evidence.certified import CertifiedCheckpoint
from trainer.evidence.origin import init_from
from trainer.evidence.rows import Gap
from trainer.huggingface.exported import exported_checkpoints
from trainer.provenance.facts import ablation_name
from trainer.provenance.setup import read_setup
from trainer.recovery.readings import PurgedOutput, as_of, readings


def not_covered(certified: CertifiedCheckpoint) -> Iterator[Gap]:
    """What else may hold the documents, each with its kind: found in records, or said to be recorded
    nowhere."""
    for link in init_from(certified):
        if link["readings"]:
            yield _gap(
                "init_from",
                link["url"],
                f"the run began with its weights, which read it {link['readings']} times",
            )
        elif link["why_unknown"]:
            yield _gap("init_from", link["url"], link["why_unknown"])
    for purged in certified.purged:
        yield from _in_output(purged)
        for run in certified.runs(purged):
            applied = sum(exposure.applied for _, exposure in readings(run, purged))
            if run.run != certified.run and applied:
                is_proxy = run.run.startswith(ablation_name(certified.run, ""))
                kind = "ablation" if is_proxy else "other run"
                yield _gap(kind, run.run, f"in {run.output}; it read it {applied} times")
            if run.run == certified.run:
                yield from _in_run(run, purged, certified)
            else:
                yield from _begun_from_it(run, purged, certified)
    yield from _set_aside(certified)


def _in_output(purged: PurgedOutput) -> Iterator[Gap]:
    """What the data itself was made with."""
    tokenizer = read_index(purged.out).tokenizer
    yield _gap(
        "tokenizer", f"{tokenizer.name} ({tokenizer.hash})", "which texts it was trained on is not recorded"
    )
    if purged.out.exists("recipe.toml"):
        recipe = tomllib.loads(purged.out.read("recipe.toml").decode())
        for table in recipe.get("classifier", ()):
            yield _gap("classifier", str(table.get("model")), "which texts it was trained on is not recorded")


def _in_run(run: TrainingRun, purged: PurgedOutput, certified: CertifiedCheckpoint) -> Iterator[Gap]:
    """Copies of the run's earlier checkpoints, and the steps of attempts that are undone."""
    for exported in exported_checkpoints(certified.output):
        # What the copy holds is what its checkpoint held then, whatever the run has undone since.
        there = as_of(run, certified.begun, exported.attempt, exported.step)
        if num := sum(exposure.applied for _, exposure in readings(there, purged)):
            what = f"{exported.described}, exported {exported.at}; it read it {num} times"
            yield _gap("export", exported.place, what)
    undone: dict[int, int] = {}
    for _, exposure in readings(run, purged):
        if not exposure.applied:
            undone[exposure.attempt] = undone.get(exposure.attempt, 0) + 1
    for attempt, num in sorted(undone.items()):
        yield _gap("undone steps", f"attempt {attempt}", f"it read it {num} times; its metrics and logs stay")


def _begun_from_it(run: TrainingRun, purged: PurgedOutput, certified: CertifiedCheckpoint) -> Iterator[Gap]:
    """Another run that began with a checkpoint of this one which had read the documents."""
    try:
        begun = attempts(Folder(run.output))
        setup = read_setup(Folder(run.output), begun[0].number) if begun else None
    except (OSError, RecipeError) as error:
        yield _gap(
            "begun from it", run.run, f"whether it was is unknown: {run.output} cannot be read ({error})"
        )
        return
    origin = None if setup is None else setup.origin
    if origin is None or origin.run != certified.run or origin.step is None or origin.attempt is None:
        return
    for own in certified.runs(purged):
        if own.run == certified.run:
            there = as_of(own, certified.begun, origin.attempt, origin.step)
            if num := sum(exposure.applied for _, exposure in readings(there, purged)):
                why = f"it began with this run's checkpoint of step {origin.step}, which read it {num} times"
                yield _gap("begun from it", run.run, why)


def _set_aside(certified: CertifiedCheckpoint) -> Iterator[Gap]:
    for entry in checkpoints_set_aside(certified.checkpoints):
        why = "a checkpoint of steps that were undone, and that the run has not done again"
        yield _gap("set aside", f"{SET_ASIDE}/{entry.name}", why)
    for entry in damaged_checkpoints(certified.checkpoints):
        why = "a damaged checkpoint of steps that were undone; it is never deleted by the run"
        yield _gap("damaged", f"{DAMAGED}/{entry.name}", why)


def _gap(kind: str, what: str, why: str) -> Gap:
    return {"kind": kind, "what": what, "why": why}
