"""A quality rule: a rule whose measure is of a text, and its row in the table of a rule set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, get_args

from stages.document import Finding
from stages.quality.text_view import Measure, TextView
from stages.rules import Lines, Rule, Side

STAGE: Final = "quality"

Variant = Literal["datatrove", "paper", "dclm", "dolma", "fineweb2", "code"]
VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)


def measured_as(variant: Variant) -> Variant:
    """The variant whose measures this one has: FineWeb-2 is datatrove's filters with other thresholds, stop
    words and ways to split words."""
    return "datatrove" if variant == "fineweb2" else variant


def in_all(measure: Callable[..., float]) -> dict[Variant, Callable[..., float]]:
    """The measure of every variant."""
    return dict.fromkeys(VARIANTS, measure)


Limits = Mapping[str, float]
"""Thresholds by their keys in [quality]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule(Rule):
    """A rule with what it measures of a text.

    `quick` is a cheaper measure that never lies nearer to the threshold than the measure does where it
    passes: if it passes, so does the measure. `datatrove` is the reason that datatrove's filter gives."""

    measure: Measure
    quick: Measure | None = None
    datatrove: str = ""

    def measured(self, view: TextView) -> Finding:
        """What the rule measures of a text, and whether it rejects it."""
        return self.finding(float(self.measure(view)))

    def rejection(self, view: TextView, measured: dict[str, float] | None = None) -> Finding | None:
        """The finding where the rule rejects the text. What it measured goes into `measured` by its name,
        where another threshold might judge it otherwise."""
        if self.quick is not None and not self.rejects(self.quick(view)):
            return None
        value = float(self.measure(view))
        if measured is not None and self.side != "yes":
            measured[self.name] = value
        return self.finding(value) if self.rejects(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A key of [quality] that holds a number: a rule's threshold, or what a rule set counts by.

    `help`, `source` and `unit` are the key's (`lineage.recipe.key`). `default` is as the source prints it;
    None: only single languages have one. `own` are the defaults of variants that have another, None in one
    that has no such rule; FineWeb-2's are datatrove's. `by_language` are those of single (programming)
    languages, None where it has no such rule. FineWeb-2's of each language come with its configuration."""

    key: str
    help: str
    source: str
    unit: str = "share"
    default: float | None
    own: Mapping[Variant, float | None] = field(default_factory=dict)
    by_language: Mapping[str, float | None] = field(default_factory=dict)

    def in_variant(self, variant: Variant) -> float | None:
        """The variant's default."""
        return self.own.get(variant, self.own.get(measured_as(variant), self.default))

    def is_off(self, variant: Variant) -> bool:
        """Whether the variant has no such rule."""
        return variant in self.own and self.own[variant] is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSpec:
    """A rule in all its variants: a variant without a measure does not have the rule.

    `threshold` is its key in [quality]; none: the measure is a yes or a no, and a yes rejects.
    `own_sides` are those of variants that differ. A measure, `quick` and a maker of `lines` take the keywords
    that the rule set gives (`RuleSpec.rule`). `lines` makes, of a variant and these keywords, what finds the
    lines that count against a text. `datatrove` is the reason that datatrove's filter gives."""

    name: str
    help: str
    measures: Mapping[Variant, Callable[..., float]]
    side: Side = "yes"
    own_sides: Mapping[Variant, Side] = field(default_factory=dict)
    threshold: Threshold | None = None
    quick: Callable[..., float] | None = None
    lines: Callable[..., Lines] | None = None
    datatrove: str = ""

    def is_in(self, variant: Variant, limits: Limits) -> bool:
        """Whether the variant has the rule, and its `limits` a threshold for it."""
        return variant in self.measures and (self.threshold is None or self.threshold.key in limits)

    def rule(self, variant: Variant, limits: Limits, **given: Any) -> TextRule:
        """The variant's rule with its threshold, one of the `limits` by key."""

        def bound(measure: Callable[..., float]) -> Measure:
            return partial(measure, **given) if given else measure

        key = self.threshold.key if self.threshold is not None else ""
        return TextRule(
            stage=STAGE,
            name=self.name,
            side=self.own_sides.get(variant, self.side),
            help=self.help,
            keys=(f"{STAGE}.{key}",) if key else (),
            threshold=limits[key] if key else None,
            lines=None if self.lines is None else self.lines(variant, **given),
            measure=bound(self.measures[variant]),
            quick=None if self.quick is None else bound(self.quick),
            datatrove=self.datatrove,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Rules in order, and what becomes of a text that passes them: the new text, and kinds of change with
    counts."""

    name: str
    rules: tuple[TextRule, ...]
    edit: Callable[[TextView], tuple[str, tuple[tuple[str, int], ...]]] | None = None

    def findings(
        self, view: TextView, *, every: bool, measured: dict[str, float] | None = None
    ) -> Iterator[Finding]:
        """What `every` rule measures, one after the other; else only the findings that reject, which come
        sooner: `measured` takes what was measured until then, by rule."""
        for rule in self.rules:
            finding = rule.measured(view) if every else rule.rejection(view, measured)
            if finding is not None:
                yield finding
