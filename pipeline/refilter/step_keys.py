"""What each step of a source is a function of: where it has one key in two runs, equal documents have equal
outcomes.

A key covers the step's options, the content of the files that it names, and the versions of what it runs on.
It is made from a run's identity (`RunPlan.identity`, which run.json keeps), so that it can be had of a
finished run too."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lineage.ids import content_hash
from pipeline.plan import encoder_libraries
from pipeline.recipe.load import differing_keys
from pipeline.recipe.tables import PipelineRecipe, tables_of
from stages.chain import build_chain
from stages.libraries import READING, TOKENIZING
from stages.rules import SIDES
from stages.steps.catalogue import SHAPING, StepSpec, StepTables, libraries_of, rules_of, spec_of
from stages.steps.user.user_code import function_files

_EVERYWHERE: Final = ("machine", "numpy", "python", "sluice")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKey:
    """A step of a source, the hash of all that it is a function of, and the keys of the recipe among that."""

    stage: str
    key: str
    recipe_keys: tuple[str, ...]


def step_keys(recipe: PipelineRecipe, identity: Mapping[str, Any], source: str) -> list[StepKey]:
    """READING, how the source's records are read, and its steps in order, those that are switched off left
    out."""
    plain: Mapping[str, Any] = next(one for one in identity["recipe"]["source"] if one["name"] == source)
    tables = tables_of(recipe)
    stages = build_chain(plain["steps"], tables).stages
    return [_step_key(stage, plain, identity, tables) for stage in (READING, *stages)]


def only_thresholds_differ(
    ours: tuple[PipelineRecipe, Mapping[str, Any]],
    theirs: tuple[PipelineRecipe, Mapping[str, Any]],
    source: str,
) -> bool:
    """Whether all that the rules of the step quality measure of the source's texts is the same in two runs,
    given as recipe and identity: what differs, if anything does, are thresholds."""
    thresholds = {
        rule.keys[0].removeprefix("quality.")
        for recipe, _ in (ours, theirs)
        for rule in rules_of(tables_of(recipe), ("quality",)).values()
        if SIDES[rule.side].has_threshold
    }

    def measured_by(recipe: PipelineRecipe, identity: Mapping[str, Any]) -> str:
        table = identity["recipe"]["quality"]
        languages = {name: _less(own, thresholds) for name, own in table["language"].items()}
        plain = identity["recipe"] | {"quality": _less(table, thresholds) | {"language": languages}}
        of_source = next(one for one in plain["source"] if one["name"] == source)
        return _step_key("quality", of_source, {**identity, "recipe": plain}, tables_of(recipe)).key

    return measured_by(*ours) == measured_by(*theirs)


def _less(table: Mapping[str, Any], keys: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in table.items() if name not in keys}


def _step_key(
    stage: str, source: Mapping[str, Any], identity: Mapping[str, Any], tables: StepTables
) -> StepKey:
    names, left_out = (_reading_keys(source), ()) if stage == READING else _keys_of(spec_of(stage), tables)
    files: Mapping[str, str] = identity["files"]
    values = {name: _value(name, source, identity["recipe"], left_out) for name in names}
    options = {name: _with_hashes(value, files) for name, value in values.items() if value is not None}
    of_step = [files.get(file.name, "") for file in function_files([stage])] if ":" in stage else []
    own = [one for one in identity["recipe"].get("step", ()) if one["name"] == stage]
    options |= {"step": _with_hashes(own, files)} if own else {}
    versions = {name: identity["versions"].get(name) for name in _run_on(stage, identity)}
    content = json.dumps([stage, options, of_step, versions], sort_keys=True)
    return StepKey(stage=stage, key=content_hash(content.encode()).hex(), recipe_keys=names)


def tokenizing_key(identity: Mapping[str, Any]) -> str:
    """The hash of all that the tokens of a text are a function of."""
    table: Mapping[str, Any] = identity["recipe"]["tokenize"]
    options = _with_hashes([table["encoding"], table.get("end_of_text")], identity["files"])
    versions = {name: identity["versions"].get(name) for name in _run_on(TOKENIZING, identity)}
    return content_hash(json.dumps([options, versions], sort_keys=True).encode()).hex()


def _keys_of(spec: StepSpec, tables: StepTables) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that a step's outcome hangs on, and those among them that it does not."""
    left_out = spec.leaves_out(tables)
    return tuple(name for name in spec.recipe_keys if name not in left_out), left_out


def _run_on(stage: str, *identities: Mapping[str, Any]) -> tuple[str, ...]:
    """What a stage runs on, as runs' identities name it. A function of the user's may run on all that they
    have."""
    if stage not in SHAPING:
        return tuple(sorted({name for identity in identities for name in identity["versions"]}))
    return (*_EVERYWHERE, *libraries_of(stage), *(encoder_libraries() if stage == "classifier" else ()))


_READING_KEYS: Final = (
    "source.inputs",
    "source.format",
    "source.mime",
    "source.namespaces",
    "source.limit",
    "source.limit_documents",
    "source.language",
    "source.text_field",
    "source.id_field",
    "source.url_field",
    "source.date_field",
    "limits.max_document_bytes",
    "limits.max_window_bytes",
    "limits.max_compression_ratio",
)


def _reading_keys(source: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that a source's reading is a function of."""
    if "index" not in source:
        return _READING_KEYS
    is_drawn = "sample" in source or "limit" in source
    return (
        *_READING_KEYS,
        "source.index",
        "source.where",
        "source.sample",
        *(["run.seed"] if is_drawn else []),
    )


def _value(
    name: str, source: Mapping[str, Any], recipe: Mapping[str, Any], left_out: Sequence[str] = ()
) -> Any:
    """The value of a key or of a whole table, less what is left out of it."""
    table, _, key = name.partition(".")
    of_table = source if table == "source" else recipe.get(table)  # an earlier build may not have had it
    if of_table is None:
        return None
    value = of_table.get(key) if key else of_table  # a key that is not given is left out of a plain recipe
    if not isinstance(value, dict):
        return value
    return {inner: one for inner, one in value.items() if f"{name}.{inner}" not in left_out}


def _with_hashes(value: Any, files: Mapping[str, str]) -> Any:
    """A value of the recipe with files in place of their names: what a step depends on is what they hold."""
    if isinstance(value, str):
        folder = f"{value.rstrip('/')}/" if value else "no folder"
        inside = {
            name.removeprefix(folder): found for name, found in files.items() if name.startswith(folder)
        }
        return {"file": files[value]} if value in files else {"folder": inside} if inside else value
    if isinstance(value, dict):
        return {name: _with_hashes(one, files) for name, one in value.items()}
    return [_with_hashes(one, files) for one in value] if isinstance(value, (list, tuple)) else value


def first_changed(ours: Sequence[StepKey], theirs: Sequence[StepKey]) -> int:
    """How many steps from the first on are unchanged: the place among `ours` of the first that is another, or
    the end of the shorter list."""
    same = 0
    for mine, other in zip(ours, theirs, strict=False):
        if (mine.stage, mine.key) != (other.stage, other.key):
            break
        same += 1
    return same


def what_differs(stage: StepKey, ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str) -> str:
    """Why a step has another key: the keys of the recipe, the versions, or a file that changed. `ours` and
    `theirs` are identities of runs."""
    found = _differing_options(stage, ours, theirs, source)
    if not found:
        names = _run_on(stage.stage, ours, theirs)
        pairs = ((name, ours["versions"].get(name), theirs["versions"].get(name)) for name in names)
        found = [f"{name} is {now} now and was {was}" for name, now, was in pairs if now != was]
    return "; ".join(found) or "a file that it names has another content"


def _differing_options(
    stage: StepKey, ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str
) -> list[str]:
    def own(identity: Mapping[str, Any]) -> dict[str, object]:
        named: Callable[[Mapping[str, Any]], bool] = lambda one: one["name"] == source  # noqa: E731
        return {**identity["recipe"], "source": next(filter(named, identity["recipe"]["source"]))}

    found = []
    for line in differing_keys(own(ours), own(theirs)):
        name = line.split(" ", 1)[0].split("[")[0]
        if any(name == key or name.startswith(f"{key}.") for key in stage.recipe_keys):
            found.append(line)
    return found
