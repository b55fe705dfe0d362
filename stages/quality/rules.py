"""A rule: what it measures and when that turns a page down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from stages.document import Finding
from stages.quality.page import Measure, Page

Side = Literal["below", "above", "at most", "at least"]
"""Where rejected values lie: < threshold, > threshold, <= threshold, >= threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`name` (full, dotted) rejects a page whose measure lies on `side` of the threshold.

    `quick` is a cheaper measure that never lies nearer to the threshold than the measure does where it passes: if it
    passes, so does the measure. `threshold` None: the measure is a yes (1) or a no (0), and a yes rejects."""

    name: str
    measure: Measure
    side: Side = "above"
    threshold: float | None = None
    quick: Measure | None = None

    def rejects(self, value: float) -> bool:
        """Whether `value` lies on the rejected side."""
        threshold = self.threshold
        if threshold is None:
            return value > 0
        if self.side == "below":
            return value < threshold
        if self.side == "above":
            return value > threshold
        return value <= threshold if self.side == "at most" else value >= threshold

    def finding(self, page: Page) -> Finding:
        """What the rule measures on `page`, and its verdict."""
        return self._found(float(self.measure(page)))

    def rejection(self, page: Page) -> Finding | None:
        """The finding where the rule rejects `page`."""
        if self.quick is not None and not self.rejects(self.quick(page)):
            return None
        value = float(self.measure(page))
        return self._found(value) if self.rejects(value) else None

    def _found(self, value: float) -> Finding:
        shown = value if self.threshold is not None else None
        return Finding(
            stage="quality", rule=self.name, value=shown, threshold=self.threshold, rejected=self.rejects(value)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Rules in order, and what becomes of a text that passes them: the new text, and kinds of change with counts."""

    name: str
    rules: tuple[Rule, ...]
    edit: Callable[[Page], tuple[str, tuple[tuple[str, int], ...]]] | None = None


def first_rejection(rules: Sequence[Rule], page: Page) -> Finding | None:
    """The finding of the first rule that rejects; rules after it are not measured."""
    return next(filter(None, (rule.rejection(page) for rule in rules)), None)


def ledger(rules: Sequence[Rule], page: Page) -> tuple[Finding, ...]:
    """What every rule measures."""
    return tuple(rule.finding(page) for rule in rules)
