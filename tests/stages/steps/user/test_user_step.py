"""Steps of one's own: functions of batches and classes, what they are given, and what is said of their
mistakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from stages.chain import build_chain
from stages.document import Document, Edit, Finding, Outcome, Rejection, reject
from stages.steps.catalogue import StepTables
from stages.steps.user.user_step import StepTable, UserStep, check_step_tables
from tests.support.steps import model_steps

OWN = "tests.support.steps.model_steps"


def tables(*steps: StepTable) -> StepTables:
    return StepTables(max_document_bytes=10**6, step=steps)


def table(name: str, **keys: Any) -> StepTable:
    return StepTable(name=f"{OWN}:{name}", **keys)


def outcomes(make_document: Any, name: str, *texts: str, **keys: Any) -> list[Outcome]:
    """What a chain of parse and the step makes of these texts."""
    documents = [make_document(text=text) for text in texts]
    chain = build_chain(("parse", f"{OWN}:{name}"), tables(table(name, **keys)) if keys else tables())
    return list(chain.run([documents], {}))


def texts_of(found: list[Outcome]) -> list[str]:
    return [outcome.text for outcome in found if isinstance(outcome, Document)]


def test_a_function_with_a_batch_size_gets_lists_of_so_many(make_document) -> None:
    found = outcomes(make_document, "reverse_batch", "a", "b", "c", "d", "e", batch_size=2)
    assert texts_of(found) == ["2 a", "2 b", "2 c", "2 d", "1 e"]


def test_a_class_is_called_with_lists_and_gives_an_outcome_for_each(make_document, tmp_path: Path) -> None:
    (tmp_path / "least").write_text("2")
    kept, short = outcomes(make_document, "Shout", "abc", "d", files={"least": str(tmp_path / "least")})
    assert isinstance(kept, Document) and kept.text == "ABC"
    assert isinstance(short, Rejection)
    assert (short.finding.stage, short.finding.rule, short.finding.value) == (
        f"{OWN}:Shout",
        "too_quiet",
        1.0,
    )


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("Raises", "KeyError", "no pills"),
        ("DropsSome", "ValueError", "gave 0 outcomes for 1 document: expected one for each"),
    ],
)
def test_the_documents_that_a_class_fails_on_are_found_and_the_others_kept(
    make_document, name, error, said
) -> None:
    first, bad, last = outcomes(make_document, name, "a", "pills", "b", batch_size=32)
    assert [type(first), type(last)] == [Document, Document]
    assert isinstance(bad, Rejection) and bad.fault is not None
    assert (bad.finding.rule, bad.fault.error) == (f"{OWN}:{name}.error", error)
    assert said in bad.fault.message


def test_the_line_of_the_users_code_is_named(make_document) -> None:
    [bad] = outcomes(make_document, "Raises", "pills")
    assert isinstance(bad, Rejection) and bad.fault is not None
    line = next(n for n, text in enumerate(_source(), 1) if 'KeyError("no pills")' in text)
    assert bad.fault.where == f"{OWN}, line {line}, in __call__"


def _source() -> list[str]:
    return (Path(__file__).parents[3] / "support" / "steps" / "model_steps.py").read_text().splitlines()


def test_an_answer_of_another_type_is_said(make_document) -> None:
    [bad] = outcomes(make_document, "GivesTexts", "a")
    assert isinstance(bad, Rejection) and bad.fault is not None
    assert "GivesTexts gave a str: expected the document or its Rejection" in bad.fault.message


def test_a_step_that_changes_what_classifiers_gave_is_told_to_leave_it(make_document) -> None:
    [bad] = outcomes(make_document, "adds_a_score", "a")
    assert isinstance(bad, Rejection) and bad.fault is not None
    assert "adds_a_score changed `scores`" in bad.fault.message


EDIT, FINDING = Edit(stage="mine", kind="cut", count=1), Finding(stage="mine", rule="seen")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda d: replace(d, metadata="seen"), "gave metadata that is no strict JSON"),
        (lambda d: replace(d, metadata='{"a": NaN}'), "gave metadata that is no strict JSON"),
        (lambda d: replace(d, metadata='{"a": "\\ud83d"}'), "gave metadata that is no strict JSON"),
        (lambda d: replace(d, metadata="[" * 100_000), "gave metadata that is no strict JSON"),
        (lambda d: replace(d, metadata='["a"]'), "gave metadata that is a list: expected a JSON object"),
        (
            lambda d: replace(d, language_score=float("nan")),
            "gave language_score a number that no table holds",
        ),
        (lambda d: replace(d, language_score="high"), "gave language_score a str"),
        (lambda d: reject(d, "", "mine", 2**64, 1), "gave value of a finding a number that no table holds"),
        (lambda d: reject(d, "", "mine", 1, 10**400), "gave threshold of a finding a number that no table"),
        (lambda d: d.with_text("b", replace(EDIT, count=1.5)), "gave count of an edit a float"),
        (
            lambda d: d.with_text("b", replace(EDIT, count=2**63)),
            "gave count of an edit a number that no table holds",
        ),
        (
            lambda d: d.with_text("b", replace(EDIT, kind=None)),
            "gave kind of an edit a NoneType: expected a text",
        ),
        (lambda d: replace(d, edits=[EDIT]), "gave edits that are no tuple of Edit"),
        (lambda d: replace(d, findings=("seen",)), "gave findings that are no tuple of Finding"),
        (lambda d: d.with_findings(replace(FINDING, value=2**64)), "gave value of a finding"),
        (lambda d: d.with_findings(replace(FINDING, stage=None)), "gave stage of a finding a NoneType"),
    ],
)
def test_what_no_table_or_export_can_hold_is_a_fault_of_the_document(
    make_document, monkeypatch, step, said
) -> None:
    monkeypatch.setattr(model_steps, "adds_a_score", step)
    [bad] = outcomes(make_document, "adds_a_score", "a")
    assert isinstance(bad, Rejection) and bad.fault is not None
    assert bad.finding.rule == f"{OWN}:adds_a_score.error" and said in bad.fault.message


def test_what_tables_and_exports_can_hold_is_kept(make_document, monkeypatch) -> None:
    def step(document: Document) -> Document:
        changed = replace(document, metadata='{"a": 1e9}', language_score=1)
        return changed.with_text("b", EDIT).with_findings(replace(FINDING, value=2**53, threshold=True))

    monkeypatch.setattr(model_steps, "adds_a_score", step)
    [kept] = outcomes(make_document, "adds_a_score", "a")
    assert isinstance(kept, Document) and kept.edits[-1] == EDIT and kept.findings[-1].value == 2**53


def test_a_class_that_cannot_be_made_is_a_wrong_recipe_and_no_fault_of_the_document(make_document) -> None:
    with pytest.raises(
        RecipeError, match=r"CannotBeMade cannot be made: OSError at .*: the weights are elsewhere"
    ):
        outcomes(make_document, "CannotBeMade", "a")


def test_a_class_is_a_model_of_its_chain_and_functions_are_none() -> None:
    steps = ("parse", f"{OWN}:reverse_batch", f"{OWN}:Shout", f"{OWN}:Raises")
    own = tables(table("reverse_batch", batch_size=2), table("Shout", actors=(1, 3)))
    models = build_chain(steps, own).models
    assert [(model.name, model.position, model.pool.actors) for model in models] == [
        (f"{OWN}:Shout", 2, (1, 3)),
        (f"{OWN}:Raises", 3, (1, 1)),
    ]


@pytest.mark.parametrize(
    ("steps", "own", "said"),
    [
        (("parse", f"{OWN}:Shout"), table("Raises"), f"step.name = '{OWN}:Raises': no source.steps names it"),
        (
            ("parse", f"{OWN}:Shout"),
            table("Shout", actors=(3, 2)),
            r"actors = \[3, 2\]: expected the fewest first",
        ),
        (
            ("parse", f"{OWN}:Shout"),
            table("Shout", resources={"a": 0.0}),
            r"resources\.a = 0: expected more than 0",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused(steps, own, said) -> None:
    with pytest.raises(RecipeError, match=said):
        check_step_tables([own], [steps])


@pytest.mark.parametrize("keys", [{"num_gpus": 1.0}, {"actors": (1, 2)}, {"files": {"a": "b"}}])
def test_only_a_class_has_actors_and_files(keys) -> None:
    with pytest.raises(RecipeError, match=f"{next(iter(keys))} = .*the step is a function"):
        UserStep(f"{OWN}:reverse_batch", table("reverse_batch", **keys))


def test_a_class_before_parse_is_refused() -> None:
    with pytest.raises(RecipeError, match="Shout' stands before 'parse': it needs a text"):
        _ = build_chain((f"{OWN}:Shout", "parse"), tables()).models
