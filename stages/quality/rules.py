"""A rule: what it measures of a text, and which values reject it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from stages.document import Finding
from stages.quality.text_view import Measure, TextView

Side = Literal["below", "above", "at most", "at least"]
"""Where rejected values lie: < threshold, > threshold, <= threshold, >= threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`name` (full, dotted) rejects a text whose measure lies on `side` of the threshold.

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

    def finding(self, view: TextView) -> Finding:
        """What the rule measures of a text, and whether it rejects it."""
        return self._found(float(self.measure(view)))

    def rejection(self, view: TextView) -> Finding | None:
        """The finding where the rule rejects the text."""
        if self.quick is not None and not self.rejects(self.quick(view)):
            return None
        value = float(self.measure(view))
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
    edit: Callable[[TextView], tuple[str, tuple[tuple[str, int], ...]]] | None = None

    def findings(self, view: TextView, *, every: bool) -> Iterator[Finding]:
        """What `every` rule measures, one after the other; else only the findings that reject, which come sooner."""
        for rule in self.rules:
            finding = rule.finding(view) if every else rule.rejection(view)
            if finding is not None:
                yield finding
