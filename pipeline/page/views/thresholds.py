"""The values of every rule with the thresholds that one can drag, and what another one would change (`sluice
tune`)."""

from __future__ import annotations

import json
import math
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from lineage.index.parsed_texts import read_parsed_texts
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.queries.query import query
from pipeline.page.views.sql import LIMITS
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe, tables_of
from pipeline.report.data import HistogramBar, ThresholdOption
from pipeline.report.thresholds import values_of_rules
from stages.steps.catalogue import rules_of

_ALL: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DraggableRule:
    """A rule's values as bars, and every threshold between two of them. `options` is JSON for the page: of
    each threshold its words, how many documents the rule then rejects, how many survive the filters and
    the change. `chosen` is the one that is set, and stands before bar `line`; those from `first` to `last`
    stand at the bars. `key` is the key of the recipe that sets it, `threshold` its value to the last digit;
    `now` are the figures of it."""

    rule: str
    key: str
    side: str
    num_measured: int
    explored: str
    bars: tuple[HistogramBar, ...]
    line: int
    is_low: bool
    options: str
    first: int
    last: int
    chosen: int
    threshold: str
    now: ThresholdOption


def draggable_rules(out: Folder, version: int | None) -> list[DraggableRule]:
    """Every rule with values and a key of the recipe; none where the output has no whole ledger."""
    recipe = recipe_of(out)
    known = rules_of(tables_of(recipe))
    values = values_of_rules(lambda sql: query(out, sql, version, LIMITS).rows, recipe, _ALL)
    found = []
    for (_, name), each in values.items():
        if not each.bars or name not in known or not known[name].keys:
            continue
        chosen = next(number for number, option in enumerate(each.options) if option.is_set)
        begin = (
            chosen + 1 - each.line
        )  # of the bars between all thresholds, those that hold documents are shown
        options = [[o.threshold, o.num_rejected, o.num_kept, o.change] for o in each.options]
        found.append(
            DraggableRule(
                rule=name,
                key=known[name].keys[0],
                side=each.side,
                num_measured=each.num_measured,
                explored=each.explored,
                bars=each.bars,
                line=each.line,
                is_low="below" in each.side or "up to" in each.side,
                options=json.dumps(options),
                first=max(0, begin - 1),
                last=min(len(options) - 1, begin - 1 + len(each.bars)),
                chosen=chosen,
                threshold=_plain(known[name].threshold or 0.0),
                now=each.options[chosen],
            )
        )
    return found


def setting_of(out: Folder, rule: str, threshold: str) -> str:
    """KEY=VALUE for --set. RecipeError for what is no rule with a threshold, or no number."""
    recipe: PipelineRecipe = recipe_of(out)
    known = rules_of(tables_of(recipe))
    if rule not in known or not known[rule].has_values or not known[rule].keys:
        raise RecipeError(f"{rule!r} is no rule of this output whose threshold can be another")
    try:
        value = float(threshold.replace(",", ""))
    except ValueError as error:
        raise RecipeError(f"threshold {threshold!r}: expected a number") from error
    if not math.isfinite(value):
        raise RecipeError(f"threshold {threshold!r}: expected a number")
    return f"{known[rule].keys[0]}={_plain(value)}"


def _plain(value: float) -> str:
    """A threshold as a recipe has it."""
    return f"{value:.0f}" if float(value).is_integer() else repr(float(value))


class ExampleJson(TypedDict):
    """A document of `examples` of `sluice tune --json`, as far as it is looked at here."""

    outcome: str
    doc_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedDocuments:
    """The documents of one outcome of another threshold, the first of `num`, as `sluice tune` gives them;
    `key` is that of their list."""

    outcome: str
    num: int
    examples: tuple[ExampleJson, ...]
    key: str


def changed_documents(
    examples: Sequence[ExampleJson], total: Mapping[str, int], put: Callable[[str, list[bytes]], str]
) -> list[ChangedDocuments]:
    """`examples` and `total` of a recipe in `sluice tune --json`, by outcome; `put` keeps a list of ids under a
    title."""
    by_outcome: dict[str, list[ExampleJson]] = {}
    for example in examples:
        by_outcome.setdefault(example["outcome"], []).append(example)
    return [
        ChangedDocuments(
            outcome=outcome,
            num=total[outcome],
            examples=tuple(by_outcome[outcome]),
            key=put(outcome, [bytes.fromhex(example["doc_id"]) for example in by_outcome[outcome]]),
        )
        for outcome in ("lost", "gained", "open")
        if outcome in by_outcome
    ]


def tune_call(out: Folder, setting: str) -> str:
    """The call of tune with this setting."""
    return shlex.join(["sluice", "tune", out.at("recipe.toml"), "--from", out.url, "--set", setting])


def run_call(out: Folder, setting: str, output: str) -> str:
    """The call of a run of this output's recipe with one other setting, into `output`: from the texts that
    this one kept, else from the crawl. What was purged here stays out of it either way."""
    texts = read_parsed_texts(out)
    has_texts = texts is not None and texts.kept and texts.removed is None
    start = ["--from", out.url] if has_texts else _purges_option(out)
    return shlex.join(
        ["sluice", "run", out.at("recipe.toml"), *start, "--set", f"run.output={output}", "--set", setting]
    )


def _purges_option(out: Folder) -> list[str]:
    """What keeps out of a run from the crawl what was purged here."""
    if not Lookup(out).purges():
        return []
    honoured = list(dict.fromkeys([*recipe_of(out).purges.honour, out.url]))
    return ["--set", f"purges.honour={json.dumps(honoured, ensure_ascii=False)}"]


def has_whole_ledger(out: Folder) -> bool:
    """Whether the run kept what every rule measured, and not the deciding rule alone."""
    recorded = tomllib.loads(out.read("recipe.toml").decode())
    return bool(recorded.get("quality", {}).get("ledger") == "all")


def ledger_call(out: Folder) -> str:
    """The call of a run that keeps the whole ledger, into an output beside this one. It starts from the
    crawl: kept texts do not tell what the steps up to parse measured."""
    beside = f"{out.url.rstrip('/')}-ledger"
    words = ["sluice", "run", out.at("recipe.toml"), *_purges_option(out)]
    return shlex.join([*words, "--set", "quality.ledger=all", "--set", f"run.output={beside}"])
