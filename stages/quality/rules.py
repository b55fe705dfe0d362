"""A quality rule: a rule whose measure is of a text, and its row in the table of a rule set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from stages.document import Finding
from stages.quality.options import Variant
from stages.quality.text_view import Measure, TextView
from stages.rules import Lines, Rule, Side

STAGE: Final = "quality"

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
class RuleSpec:
    """A rule in all its variants: a variant without a measure does not have the rule.

    `key` is that of its threshold in [quality]; none: the measure is a yes or a no, and a yes rejects.
    `own_sides` are those of variants that differ. A measure, `quick` and a maker of `lines` take the keywords
    that the rule set gives (`RuleSpec.rule`). `lines` makes, of a variant and these keywords, what finds the
    lines that count against a text. `datatrove` is the reason that datatrove's filter gives."""

    name: str
    help: str
    measures: Mapping[Variant, Callable[..., float]]
    side: Side = "yes"
    own_sides: Mapping[Variant, Side] = field(default_factory=dict)
    key: str = ""
    quick: Callable[..., float] | None = None
    lines: Callable[..., Lines] | None = None
    datatrove: str = ""

    def is_in(self, variant: Variant, limits: Limits) -> bool:
        """Whether the variant has the rule, and its `limits` a threshold for it."""
        return variant in self.measures and (not self.key or self.key in limits)

    def rule(self, variant: Variant, limits: Limits, **given: Any) -> TextRule:
        """The variant's rule with its threshold, one of the `limits` by key."""

        def bound(measure: Callable[..., float]) -> Measure:
            return partial(measure, **given) if given else measure

        return TextRule(
            stage=STAGE,
            name=self.name,
            side=self.own_sides.get(variant, self.side),
            help=self.help,
            keys=(f"{STAGE}.{self.key}",) if self.key else (),
            threshold=limits[self.key] if self.key else None,
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
