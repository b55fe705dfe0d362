"""Each rule set, described once: a row of CATALOGUE is all that the rest of the project knows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stages.quality.fineweb2.configurations import BY_LANGUAGE
from stages.quality.rule_sets import (
    c4,
    code,
    fineweb,
    gopher_quality,
    gopher_repetition,
    line_edits,
    madlad,
    text_edits,
    url_removal,
)
from stages.quality.rules import VARIANTS, Limits, RuleSet, RuleSpec, Threshold, Variant, measured_as


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSetInputs:
    """What a rule set is made of: whose measures, and what the recipe says for texts in one language (empty:
    in whichever)."""

    variant: Variant
    limits: Limits
    stop_words: tuple[str, ...]
    language: str
    terminal_punctuation: bool
    line_edits: line_edits.Manner


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSetSpec:
    """A rule set: how it is made, its rules, and the further keys that it counts by. `is_of_any_language`: it
    asks for no words in a language, and is the same in every variant."""

    make: Callable[[RuleSetInputs], RuleSet]
    rows: Sequence[RuleSpec] = ()
    settings: Sequence[Threshold] = ()
    is_of_any_language: bool = True


CATALOGUE: Final[Mapping[str, RuleSetSpec]] = {
    "gopher_quality": RuleSetSpec(
        make=lambda inputs: gopher_quality.rule_set(inputs.variant, inputs.limits, inputs.stop_words),
        rows=gopher_quality.ROWS,
        is_of_any_language=False,
    ),
    "gopher_repetition": RuleSetSpec(
        make=lambda inputs: gopher_repetition.rule_set(inputs.variant, inputs.limits),
        rows=gopher_repetition.ROWS,
        is_of_any_language=False,
    ),
    "c4": RuleSetSpec(
        make=lambda inputs: c4.rule_set(
            inputs.variant, inputs.limits, terminal_punctuation=inputs.terminal_punctuation
        ),
        rows=c4.ROWS,
        settings=c4.SETTINGS,
        is_of_any_language=False,
    ),
    "fineweb": RuleSetSpec(
        make=lambda inputs: fineweb.rule_set(inputs.variant, inputs.limits),
        rows=fineweb.ROWS,
        settings=fineweb.SETTINGS,
        is_of_any_language=False,
    ),
    "length": RuleSetSpec(make=lambda inputs: text_edits.length(inputs.limits), rows=text_edits.LENGTH_ROWS),
    "url_removal": RuleSetSpec(make=lambda inputs: url_removal.rule_set(), rows=url_removal.ROWS),
    "newlines": RuleSetSpec(make=lambda inputs: text_edits.newlines()),
    "line_edits": RuleSetSpec(
        make=lambda inputs: line_edits.rule_set(inputs.limits, inputs.line_edits),
        rows=line_edits.ROWS,
        settings=line_edits.SETTINGS,
    ),
    "madlad": RuleSetSpec(make=lambda inputs: madlad.rule_set(inputs.limits), rows=madlad.ROWS),
    "ftfy": RuleSetSpec(make=lambda inputs: text_edits.mojibake()),
    "symbol_lines": RuleSetSpec(make=lambda inputs: text_edits.symbol_lines()),
    "notebooks": RuleSetSpec(make=lambda inputs: code.notebooks()),
    "code": RuleSetSpec(make=lambda inputs: code.rule_set(inputs.limits, inputs.language), rows=code.ROWS),
}
"""Every rule set by name."""

RULE_SETS: Final = tuple(CATALOGUE)
OF_ANY_LANGUAGE: Final = frozenset(name for name, spec in CATALOGUE.items() if spec.is_of_any_language)


def rule_sets_of(variant: Variant) -> tuple[str, ...]:
    """The rule sets that a variant has, in the order of RULE_SETS."""
    return tuple(name for name in RULE_SETS if variant != "code" or name in OF_ANY_LANGUAGE)


THRESHOLDS: Final[Mapping[str, Threshold]] = {
    threshold.key: threshold
    for spec in CATALOGUE.values()
    for threshold in (*spec.settings, *(row.threshold for row in spec.rows))
    if threshold is not None
}
"""Every number of [quality] by its key."""


def _variants() -> dict[str, tuple[Variant, ...]]:
    """By key, the variants that have the threshold: those that have a measure for its rule."""
    found: dict[str, tuple[Variant, ...]] = {}
    for name, spec in CATALOGUE.items():
        with_set = [variant for variant in VARIANTS if name in rule_sets_of(variant)]
        measured = {row.threshold.key: row.measures for row in spec.rows if row.threshold is not None}
        for key in (*(setting.key for setting in spec.settings), *measured):
            found[key] = tuple(
                variant
                for variant in with_set
                if measured_as(variant) in measured.get(key, VARIANTS) and not THRESHOLDS[key].is_off(variant)
            )
    return found


_VARIANTS: Final[Mapping[str, tuple[Variant, ...]]] = _variants()


def is_in(name: str, variant: Variant) -> bool:
    """Whether a variant has the rule of this threshold."""
    return variant in _VARIANTS[name]


def is_by_language(name: str, variant: Variant) -> bool:
    """Whether only single languages have a threshold of this name."""
    return THRESHOLDS[name].default is None or (variant == "fineweb2" and name in BY_LANGUAGE)


def threshold_defaults(name: str) -> dict[Variant, float | None]:
    """The default of a threshold in each variant that has its rule, None in one where each language has its
    own; no variant where `name` is no threshold."""
    return {
        variant: None if is_by_language(name, variant) else THRESHOLDS[name].in_variant(variant)
        for variant in _VARIANTS.get(name, ())
    }
