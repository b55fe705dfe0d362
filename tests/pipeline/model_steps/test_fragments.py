"""Fragments and answers as files: what is read back, where they are cut, and which answers belong to which
content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.storage.folder import Folder
from pipeline.model_steps import fragments
from pipeline.model_steps.fragments import (
    Answers,
    FragmentContent,
    cut,
    publish_answers,
    publish_fragment,
    publish_named,
    read_answers,
    read_fragment,
    with_answers,
)
from stages.document import Document, Edit, Finding, Outcome, Place, Rejection
from stages.fault import Fault

TEXTS = st.text(st.characters(), max_size=20)  # lone surrogates among them, which JSON may hold
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False))
FINDINGS = st.builds(
    Finding, stage=TEXTS, rule=TEXTS, value=NUMBERS, threshold=NUMBERS, rejected=st.booleans()
)
FAULTS = st.builds(Fault, error=TEXTS, where=TEXTS, traceback=TEXTS, message=TEXTS)
SMALL = st.integers(0, 2**62)
OPTIONAL = st.one_of(st.none(), TEXTS)
DOCUMENTS = st.builds(
    Document,
    doc_id=st.binary(min_size=16, max_size=16),
    source=TEXTS,
    place=st.builds(Place, file=TEXTS, offset=SMALL, length=SMALL),
    raw_hash=st.binary(max_size=16),
    num_bytes=SMALL,
    is_html=st.booleans(),
    content_type=TEXTS,
    charset_hint=OPTIONAL,
    content_encoding=OPTIONAL,
    record_id=OPTIONAL,
    url=OPTIONAL,
    captured_at=OPTIONAL,
    metadata=OPTIONAL,
    charset=OPTIONAL,
    text=TEXTS,
    text_hash=st.one_of(st.none(), st.binary(max_size=16)),
    language=OPTIONAL,
    language_score=NUMBERS,
    scores=st.lists(st.tuples(TEXTS, st.floats(allow_nan=False)), max_size=2).map(tuple),
    edits=st.lists(st.builds(Edit, stage=TEXTS, kind=TEXTS, count=SMALL), max_size=2).map(tuple),
    findings=st.lists(FINDINGS, max_size=2).map(tuple),
)
REJECTIONS = st.builds(
    Rejection,
    document=DOCUMENTS,
    finding=FINDINGS,
    findings=st.lists(FINDINGS, max_size=2).map(tuple),
    fault=st.one_of(st.none(), FAULTS),
)
OUTCOMES = st.one_of(DOCUMENTS, REJECTIONS)


@given(outcomes=st.lists(OUTCOMES, max_size=4))
@settings(max_examples=60)
def test_a_fragment_gives_back_the_outcomes_that_it_was_made_of(
    tmp_path_factory: Any, outcomes: list[Outcome]
) -> None:
    out = Folder(str(tmp_path_factory.mktemp("out")))
    fragment = publish_fragment(out, "work/units/u", 3, outcomes)
    assert read_fragment(out, fragment).outcomes == tuple(outcomes)
    assert fragment.num_documents == sum(isinstance(outcome, Document) for outcome in outcomes)


@given(
    answers=st.one_of(st.lists(st.one_of(st.floats(allow_nan=False), FAULTS)), st.lists(OUTCOMES, max_size=4))
)
@settings(max_examples=60)
def test_answers_are_read_back_as_they_were_given(tmp_path_factory: Any, answers: list[Any]) -> None:
    out = Folder(str(tmp_path_factory.mktemp("out")))
    fragment = publish_fragment(out, "work/units/u", 0, [])
    given_answers = Answers(device="cpu AVX2", seconds=0.25, answers=tuple(answers))
    assert read_answers(out, fragment, "a model") is None
    publish_answers(out, fragment, "a model", given_answers)
    assert read_answers(out, fragment, "a model") == given_answers
    assert read_answers(out, fragment, "another model") is None


def documents(num: int, text: str = "x") -> list[Outcome]:
    place = Place(file="a.jsonl", offset=0, length=1)
    return [
        Document(doc_id=bytes(16), source="web", place=place, raw_hash=b"", text=f"{text} {number}")
        for number in range(num)
    ]


def rejected(outcome: Outcome) -> Rejection:
    assert isinstance(outcome, Document)
    return Rejection(document=outcome, finding=Finding(stage="s", rule="r", rejected=True))


def test_a_fragment_holds_at_most_256_documents_and_what_is_rejected_between_them() -> None:
    outcomes = documents(600)
    outcomes[1] = rejected(outcomes[1])
    runs = list(cut(outcomes))
    assert [len(run) for run in runs] == [257, 256, 87]
    assert [outcome for run in runs for outcome in run] == outcomes
    assert list(cut([])) == []


def test_long_texts_and_many_rejections_end_a_fragment_too(monkeypatch) -> None:
    monkeypatch.setattr(fragments, "_MOST_CHARS", 1000)
    assert [len(run) for run in cut(documents(4, "y" * 600))] == [2, 2]
    monkeypatch.setattr(fragments, "_MOST_OUTCOMES", 3)
    assert [len(run) for run in cut([rejected(each) for each in documents(7)])] == [3, 3, 1]


def test_a_fragment_of_another_content_has_another_name(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    names = {publish_fragment(out, "work/units/u", 0, documents(1, text)).name for text in "ab"}
    assert len(names) == 2
    assert len({publish_fragment(out, "work/units/u", 0, documents(1)).name for _ in range(2)}) == 1


def test_seconds_of_steps_behind_a_fragment_travel_with_what_was_made_of_it(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    fragment = publish_fragment(out, "work/units/u", 0, documents(1))
    assert read_fragment(out, fragment).seconds == {}
    following = replace(fragment, name=f"{fragment.name}.1")
    content = FragmentContent(outcomes=tuple(documents(1)), seconds={"pii": 1.5})
    publish_named(out, following, content)
    assert read_fragment(out, following) == content


def test_each_document_bears_the_answers_in_the_order_of_the_documents() -> None:
    outcomes = documents(3)
    outcomes[1] = rejected(outcomes[1])
    given_answers = Answers(device="cpu", seconds=0.0, answers=(0.25, 0.75))
    first, second, third = with_answers(outcomes, {"m": given_answers})
    assert isinstance(first, Document) and isinstance(third, Document)
    assert (first.answers, third.answers) == ({"m": 0.25}, {"m": 0.75})
    assert second == outcomes[1]
