"""Each rule is described once: verdicts, SQL and findings come of its row."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.store.queries.views import text_literal
from pipeline.inspect.explain.explanation import explain
from stages.chain import build_chain
from stages.pii.options import PiiTable
from stages.quality.options import QualityTable, limits
from stages.quality.rule_sets.catalogue import RULE_SETS
from stages.quality.rules import Variant
from stages.quality.step import quality_rules
from stages.rules import SIDES, Rule, Side
from stages.steps.catalogue import CATALOGUE, StepTables, rules_of
from stages.steps.classifier import ClassifierTable
from stages.steps.language import LanguageTable
from stages.steps.models.fasttext_model import BUNDLED

VARIANTS: tuple[Variant, ...] = ("datatrove", "paper", "dclm", "dolma")
MEASURED: tuple[Side, ...] = ("below", "above", "at most", "at least", "above, or 1", "always", "never")
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 0.5, 1.0])


@pytest.mark.parametrize("side", MEASURED)
@given(value=NUMBERS, threshold=NUMBERS)
def test_a_verdict_is_the_same_in_python_and_in_sql(side: Side, value: float, threshold: float) -> None:
    rule = Rule(stage="url", name="url.x", side=side, help="x", threshold=threshold)
    sql = SIDES[side].sql.format(value=f"{value!r}::DOUBLE", threshold=repr(threshold))
    assert duckdb.sql(f"SELECT {sql}").fetchall() == [(rule.rejects(value),)]


@pytest.mark.parametrize("label", ["de", "en", "O'", None])
def test_a_language_is_judged_the_same_in_python_and_in_sql(label: str | None) -> None:
    passing = ("de", "O'")
    rule = Rule(stage="language", name="language.x", side="not among", help="x")
    value = "NULL::VARCHAR" if label is None else text_literal(label)
    sql = SIDES["not among"].sql.format(value=value, threshold=", ".join(map(text_literal, passing)))
    assert (
        duckdb.sql(f"SELECT {sql}").fetchall()
        == [(rule.rejects(label, passing),)]
        == [(label not in passing,)]
    )


def test_every_side_is_held_to_one_of_these() -> None:
    assert {*MEASURED, "not among", "yes", "listed"} == SIDES.keys()


def test_every_finding_is_of_a_rule_of_the_catalogue_in_its_order(make_document):  # type: ignore[no-untyped-def]
    tables = StepTables(
        max_document_bytes=9_000,
        language=LanguageTable(keep=("de",), prefilter=True),
        quality=QualityTable(rules=RULE_SETS, ledger="all", no_table="pass"),
        classifier=(
            ClassifierTable(name="a", model=BUNDLED, label="en", threshold=0.5, reject="below"),
            ClassifierTable(name="b", model=BUNDLED, label="en", reject="never"),
        ),
        pii=PiiTable(action="drop"),
    )
    chain = build_chain(("url", "prefilter", "parse", "language", "quality", "classifier", "pii"), tables)
    rules = rules_of(tables, chain.stages)
    page = (
        "<html><body><article>"
        + "<p>The boats came home. Write to ann@example.org.</p>" * 60
        + "</article></body></html>"
    )
    met = set()
    for payload in (page.encode(), b"<p></p>", b"x" * 10_000, b"<p " + b"a=1 " * 1_500 + b">"):
        for step in explain(make_document(html=payload), chain).steps:
            found = [finding for finding in step.findings if finding is not step.deciding]
            names = [finding.rule for finding in found]
            assert names == sorted(names, key=list(rules).index)
            met |= {finding.rule for finding in step.findings}
            for finding in step.findings:
                rule = rules[finding.rule]
                assert (finding.stage, finding.threshold) == (
                    rule.stage,
                    rule.threshold,
                ) and rule.stage == step.stage
                if finding.value is not None and rule.side != "not among":
                    assert finding.rejected == rule.rejects(finding.value)
    assert (
        len(met) > len(rules) - 17 and {"parse.empty", "url.too_long", "classifier.b", "pii.dropped"} <= met
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_threshold_of_a_variant_is_that_of_one_rule_or_shapes_what_is_measured(variant: Variant) -> None:
    table = QualityTable(rules=RULE_SETS, variant=variant)
    keys = [key.removeprefix("quality.") for rule in quality_rules(table)[1:] for key in rule.keys]
    shaping = {"c4_min_words_per_line", "fineweb_short_line_chars"} | {"c4_max_word_chars"} & limits(
        table
    ).keys()
    shaping |= {f"line_edits_{name}" for name in ("max_uppercase", "max_digits", "min_words", "max_words")}
    of_html = ("code_min_visible", "code_min_visible_chars")  # no other language has a threshold for these
    assert sorted([*keys, *shaping]) == sorted([*limits(table), *of_html])


def test_a_rule_is_named_after_its_step_and_says_what_it_measures() -> None:
    tables = StepTables(
        max_document_bytes=1, quality=QualityTable(rules=RULE_SETS), pii=PiiTable(action="drop")
    )
    for stage, spec in CATALOGUE.items():
        for rule in spec.rules(tables):
            assert rule.stage == stage and rule.help
            assert rule.name.split(".")[0] in (stage, *RULE_SETS)


def test_every_step_says_what_it_is_for() -> None:
    assert [name for name, step in CATALOGUE.items() if not step.purpose] == []
