"""The tables of rules in docs/rules.md, made of the rules' own rows.

`python -m pipeline.recipe_help.rules docs/rules.md` writes them between their marks, and leaves the prose as
it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pipeline.recipe.tables import LimitsTable
from pipeline.recipe_help.keys import recipe_keys
from pipeline.recipe_help.marked import rewrite, with_lines
from stages.pii.options import PiiTable
from stages.quality.options import QualityTable
from stages.quality.rule_sets.catalogue import RULE_SETS
from stages.quality.rules import VARIANTS, TextRule, Variant
from stages.rights.options import DENIABLE, RightsTable
from stages.rules import Rule
from stages.steps.catalogue import CATALOGUE, StepTables
from stages.steps.classifier import ClassifierTable

_VARIANTS: Final[tuple[Variant, ...]] = tuple(name for name in VARIANTS if name != "code")
"""The variants of the rules of prose. Those of source files are the same in each."""
_MARKS: Final = (
    "<!-- The tables of rules, written by `make docs`. -->\n",
    "<!-- End of the tables of rules. -->\n",
)
_HEAD: Final = (
    "| rule | what it measures | rejects | default | datatrove's reason |\n| --- | --- | --- | --- | --- |"
)


def with_tables(page: str) -> str:
    """The page with its tables of rules made anew."""
    return with_lines(page, _MARKS, _tables())


def _tables() -> Iterator[str]:
    yield _HEAD
    defaults = {key.name: key.shown_default for key in recipe_keys() if key.recipe == "data"}
    group = ""
    for name, by_variant in _rules().items():
        if _group(name) != group:
            group = _group(name)
            yield f"| **{group}** | | | | |"
        rule = next(iter(by_variant.values()))
        reason = f"`{rule.datatrove}`" if isinstance(rule, TextRule) and rule.datatrove else ""
        cells = (f"`{name}`", rule.help, _rejects(by_variant), _default(by_variant, defaults), reason)
        yield f"| {' | '.join(cells)} |"


def _rules() -> dict[str, dict[Variant, Rule]]:
    """Every rule that a recipe can have by name, in the order of its step, as each variant that has it has
    it."""
    found: dict[str, dict[Variant, Rule]] = {}
    for spec in CATALOGUE.values():
        for variant in _VARIANTS:
            for rule in spec.rules(_all_on(variant)):
                found.setdefault(rule.name, {})[variant] = rule
    groups = list(
        dict.fromkeys(map(_group, found))
    )  # a rule that only later variants have is met behind other sets
    return dict(sorted(found.items(), key=lambda pair: groups.index(_group(pair[0]))))


def _group(name: str) -> str:
    """The step or rule set that a rule is named after."""
    return name.partition(".")[0]


def _all_on(variant: Variant) -> StepTables:
    """Tables by which every rule of the variant is there."""
    return StepTables(
        max_document_bytes=LimitsTable().max_document_bytes,
        quality=QualityTable(rules=RULE_SETS, variant=variant),
        classifier=(ClassifierTable(name="NAME", model="", label="LABEL"),),
        pii=PiiTable(action="drop"),
        rights=RightsTable(deny=DENIABLE),
    )


def _rejects(by_variant: Mapping[Variant, Rule]) -> str:
    """The side with the key of its threshold; then the variants with another side, and further keys that
    decide."""
    rule = next(iter(by_variant.values()))
    side, comma, rest = rule.side.partition(",")
    if rule.side in ("always", "never"):
        against, deciding = "", rule.keys
    elif rule.keys:
        against, deciding = f" `{rule.keys[0]}`", rule.keys[1:]
    else:
        against, deciding = "" if rule.threshold is None else f" {rule.threshold:g}", ()
    others = [f"{variant}: {other.side}" for variant, other in by_variant.items() if other.side != rule.side]
    others += [f"as `{key}` says" for key in deciding]
    return side + against + comma + rest + (f" ({'; '.join(others)})" if others else "")


def _default(by_variant: Mapping[Variant, Rule], defaults: Mapping[str, str]) -> str:
    """The default of its first key, and which variants lack the rule."""
    rule = next(iter(by_variant.values()))
    default = defaults[rule.keys[0]] if rule.keys else ""
    without = [variant for variant in _VARIANTS if variant not in by_variant]
    lacking = f"not {', '.join(without)}" if without else ""
    return "; ".join(part for part in (default, lacking) if part)


if __name__ == "__main__":
    rewrite(with_tables)
