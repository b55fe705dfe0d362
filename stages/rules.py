"""A rule, described once: its name, which values it rejects, by which key of the recipe, what it measures,
which lines of a text count against it.

Steps make their findings of it; `sluice tune` judges recorded values with it; the report marks lines and
draws values by it; docs/rules.md lists it. Each step's rules stand in its row of the catalogue
(`stages/steps/catalogue.py`)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from stages.document import Finding

Side = Literal[
    "below", "above", "at most", "at least", "above, or 1", "yes", "listed", "not among", "always", "never"
]
"""Where the values lie that a rule rejects."""

Lines = Callable[[Sequence[str]], frozenset[int]]
"""The lines of a text -> the numbers, from 0, of those that count against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSpec:
    """A side, in Python and in SQL. `rejects` is of a value and the threshold; `sql` says the same of the
    expressions {value} and {threshold}, or of the recorded {verdict} where no value is recorded.

    Of a side that parts numbers at a threshold: `words` for people, `is_low` where it rejects what is
    smaller, and `takes_equal` where a value that equals an edge lies below it, so that an edge parts what
    passes from what does not."""

    rejects: Callable[[Any, Any], bool]
    sql: str
    words: str = ""
    is_low: bool = False
    takes_equal: bool = False

    @property
    def has_threshold(self) -> bool:
        """Whether it parts numbers at a threshold."""
        return bool(self.words)


SIDES: Final[Mapping[Side, SideSpec]] = {
    "below": SideSpec(
        rejects=operator.lt, sql="{value} < {threshold}", words="a value below it is rejected", is_low=True
    ),
    "above": SideSpec(
        rejects=operator.gt,
        sql="{value} > {threshold}",
        words="a value above it is rejected",
        takes_equal=True,
    ),
    "at most": SideSpec(
        rejects=operator.le,
        sql="{value} <= {threshold}",
        words="a value up to it is rejected",
        is_low=True,
        takes_equal=True,
    ),
    "at least": SideSpec(
        rejects=operator.ge, sql="{value} >= {threshold}", words="a value from it on is rejected"
    ),
    "above, or 1": SideSpec(
        rejects=lambda value, threshold: value > threshold or value == 1,
        sql="({value} > {threshold} OR {value} = 1)",
        words="a value above it is rejected, and 1 always",
        takes_equal=True,
    ),
    # A yes (1) or a no (0). Its findings record no value, and what is asked has no threshold that could be
    # another.
    "yes": SideSpec(rejects=lambda value, _: value > 0, sql="{verdict} = 'reject'"),
    # The value is the number of the line of a list, 0 for none.
    "listed": SideSpec(rejects=lambda value, _: value > 0, sql="{verdict} = 'reject'"),
    # The value is a document's label (None: it has none), the threshold the labels that pass.
    "not among": SideSpec(
        rejects=lambda label, passing: label not in passing,
        sql="({value} IS NULL OR {value} NOT IN ({threshold}))",
    ),
    "always": SideSpec(rejects=lambda value, _: True, sql="true"),
    "never": SideSpec(rejects=lambda value, _: False, sql="false"),
}
"""Every side: the one place where verdicts are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`name` (full, dotted) rejects a document of which what it measures, `help`, lies on `side` of
    `threshold`.

    `keys` are the recipe's keys that decide which values it rejects, the threshold's first; none: they are
    fixed. A threshold of None is one that the recipe gives no number for. `by_language` are the thresholds
    for texts in languages that have one of their own, by code. `among` are the languages that pass a rule
    whose side is "not among", as the recipe names them. `is_bound`: it bounds what is looked at, or holds
    whatever the recipe, so that neither the report nor `sluice tune` tries other thresholds. `lines`: which
    lines of a text count against it; None: no single ones."""

    stage: str
    name: str
    side: Side
    help: str
    keys: tuple[str, ...] = ()
    threshold: float | None = None
    by_language: Mapping[str, float] = field(default_factory=dict, hash=False)
    among: tuple[str, ...] = ()
    is_bound: bool = False
    lines: Lines | None = None

    def at(self, threshold: float | None) -> Rule:
        """The rule with its threshold."""
        return replace(self, threshold=threshold)

    @property
    def has_values(self) -> bool:
        """Whether its findings bear numbers that one threshold parts, which another recipe may set
        elsewhere."""
        has_one = self.threshold is not None and not self.by_language
        return SIDES[self.side].has_threshold and has_one and not self.is_bound

    def rejects(self, value: object, passing: Collection[str] = ()) -> bool:
        """Whether `value` lies on the rejected side; of a rule "not among": whether a label is none of the
        `passing` ones."""
        return SIDES[self.side].rejects(value, passing if self.side == "not among" else self.threshold)

    def verdict_is_that_of(self, other: Rule) -> bool:
        """Whether both reject the same values."""
        return (self.side, self.threshold, self.by_language, self.among) == (
            other.side,
            other.threshold,
            other.by_language,
            other.among,
        )

    def finding(self, value: float | None = None, *, rejected: bool | None = None) -> Finding:
        """What the rule found: `value` is what it measured, with the verdict by it, unless `rejected` gives
        one that the value does not tell. The value of a yes or no is not recorded."""
        return Finding(
            stage=self.stage,
            rule=self.name,
            value=None if self.side == "yes" else value,
            threshold=self.threshold,
            rejected=self.rejects(value) if rejected is None else rejected,
        )


def offending_lines(rules: Mapping[str, Rule], rule: str, text: str) -> frozenset[int]:
    """The numbers, from 0, of the lines of `text` (cut at line feeds) that count against it by `rule`, a full
    name such as fineweb.too_many_short_lines; none for a rule that marks no lines, or is not one of
    `rules`."""
    found = rules.get(rule)
    return frozenset() if found is None or found.lines is None else found.lines(text.split("\n"))
