"""What differs between two texts, what is masked in one, and how a text that is meant to harm is shown."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.store.queries.query import QueryResult
from lineage.store.rows import DocumentRow
from lineage.trace.document_history import StageDecision
from pipeline.page.render import environment, harmless
from pipeline.page.views import texts
from pipeline.page.views.document import ranked_rules, rule_bars, without_rules
from pipeline.page.views.search import spellings
from pipeline.page.views.sql import csv_of, doc_ids_of, plot_of
from pipeline.page.views.texts import Stretch, differing, part_shown, shown, side_by_side

SOME_TEXT = st.text(alphabet="ab <>EMAIL\n.", max_size=60)


@pytest.fixture
def small_row() -> DocumentRow:
    """A row of a document of which nothing is known."""
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(DocumentRow))
    return DocumentRow(**{**nothing, "doc_id": b"", "source": "web", "status": "kept"})  # type: ignore[arg-type]


def marked(pieces: list[Stretch] | tuple[Stretch, ...], mark: str) -> list[str]:
    return [piece.text for piece in pieces if piece.mark == mark]


def test_words_that_only_one_text_has_are_marked_in_it() -> None:
    left, right = differing("The old lamp burns.\nMenu Home\nEnd.", "The new lamp burns.\nEnd.")
    assert marked(left, "gone") == ["old", "Menu Home\n"] or marked(left, "gone") == ["old", "\nMenu Home"]
    assert marked(right, "new") == ["new"]


@given(SOME_TEXT, SOME_TEXT)
def test_the_pieces_of_a_text_are_the_text(old: str, new: str) -> None:
    left, right = side_by_side(old, new, 1000)
    assert "".join(piece.text for piece in left.pieces) == old
    assert "".join(piece.text for piece in right.pieces) == new
    unmarked = ["".join(p.text for p in side.pieces if p.mark in ("", "masked")) for side in (left, right)]
    if "<EMAIL>" not in old + new:
        assert unmarked[0] == unmarked[1], "what is not marked is in both"


def test_a_placeholder_is_one_piece_where_only_a_part_of_it_differs() -> None:
    left, right = side_by_side("Write to <EMAIL> now", "Write to <PHONE> now", 1000)
    assert marked(left.pieces, "masked") == ["<EMAIL>"] and marked(right.pieces, "masked") == ["<PHONE>"]


def test_texts_without_end_are_compared_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_MOST_WORDS", 10)
    old, new = "a b " * 1000, "c d " * 1000
    left, right = side_by_side(old, new, 100_000)
    assert (
        "".join(piece.text for piece in left.pieces) == old and "".join(p.text for p in right.pieces) == new
    )
    cut = shown("x" * 10_000_000, 10**9)
    assert (cut.num_shown, cut.num_chars) == (texts.MOST_CHARS, 10_000_000)


def test_what_steers_a_terminal_or_the_direction_of_writing_is_shown_as_an_escape() -> None:
    assert (
        harmless("a\u202eb\x1b[31m\x00c\td\n\u2066e\ud800") == "a\\u202eb\\x1b[31m\\x00c\td\n\\u2066e\\ud800"
    )
    persian = "می\u200cخواهم"
    assert harmless(persian) == persian, "a joiner is a part of its word"
    line = environment().from_string("{{ text|line }}").render(text="<b>\u202e\n")
    assert line == "&lt;b&gt;\\u202e\\n"


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("https://a.example/x", ["https://a.example/x/"]),
        ("https://a.example/x/", ["https://a.example/x"]),
        ("https://a.example/x/?q=a/b", ["https://a.example/x?q=a/b"]),
        ("https://a.example", []),
        ("https://a.example/x#top", ["https://a.example/x/#top"]),
    ],
)
def test_a_url_is_looked_for_with_a_slash_more_or_less(url: str, other: list[str]) -> None:
    assert list(spellings(url)) == [url, *other]


def test_value_and_threshold_stand_on_one_scale() -> None:
    def bar(value: float | None, threshold: float | None) -> tuple[float | None, float | None]:
        decision = StageDecision(stage="quality", rule="r", value=value, threshold=threshold, verdict="keep")
        [(_, [found])] = rule_bars([decision])
        return found.value_at, found.threshold_at

    for value, threshold in ((1.0, 2.0), (2.0, 1.0), (-3.0, 1.0), (0.0, 0.0), (5.0, -5.0)):
        value_at, threshold_at = bar(value, threshold)
        assert value_at is not None and threshold_at is not None
        assert 0 <= value_at <= 1 and 0 <= threshold_at <= 1
        assert (value_at < threshold_at) == (value < threshold)
    assert bar(None, 1.0) == bar(1.0, None) == (None, None)


def measured(rule: str, value: float | None, threshold: float | None, verdict: str = "keep") -> StageDecision:
    return StageDecision(stage="quality", rule=rule, value=value, threshold=threshold, verdict=verdict)


def test_rules_are_ranked_by_how_near_they_came_as_a_share_of_the_threshold() -> None:
    decisions = [
        StageDecision(stage="url", verdict="keep"),
        measured("long", 900.0, 1000.0),
        measured("letters", 0.85, 0.8),
        measured("yes or no", None, None),
        measured("none at all", 0.0, 0.0, "reject"),
        measured("cut", 3.0, None, "edit"),
        measured("far", 5.0, 50_000.0),
    ]
    ranked = ranked_rules(decisions)
    assert [bar.decision.rule for bar in ranked.bars] == [
        "none at all",
        "letters",
        "long",
        "far",
        "yes or no",
    ]
    assert ranked.nearest is not None and ranked.nearest.decision.rule == "letters"
    assert ranked_rules([measured("only", 3.0, 50.0, "reject")]).nearest is None, (
        "it turned the document down"
    )
    assert [d.stage for d in without_rules(decisions)] == ["url", "quality"], "what the rules do not say"


def test_a_part_of_a_text_is_marked_and_what_is_personal_at_its_end_is_masked_whole(
    small_row: DocumentRow,
) -> None:
    found = part_shown("Write to some", "body@example.org and rest. ", "And so on.", small_row)
    assert [tuple(piece) for piece in found.pieces] == [
        ("Write to ", ""),
        ("<EMAIL>", "masked"),
        (" and rest. ", "part"),
        ("And so on.", ""),
    ]
    plain = part_shown("a" * 500, "the part", "b" * 500, small_row)
    assert marked(plain.pieces, "part") == ["the part"] and plain.num_chars == 8
    assert [len(piece.text) for piece in plain.pieces] == [300, 8, 300]


def test_an_answer_is_plotted_where_it_has_labels_and_figures() -> None:
    answer = QueryResult(columns=("rule", "n"), rows=[("a", 3), (None, -1), ("b", 0)])
    plot = plot_of(answer)
    assert plot is not None and [(bar.label, bar.value) for bar in plot.bars] == [
        ("a", 3),
        ("null", -1),
        ("b", 0),
    ]
    assert [(round(bar.begin, 2), round(bar.end, 2)) for bar in plot.bars] == [
        (0.25, 1.0),
        (0.0, 0.25),
        (0.25, 0.25),
    ]
    without = [
        (("rule",), [("a",)]),
        (("a", "b"), [("x", "y")]),
        (("a", "n"), []),
        (("a", "n"), [("x", True)]),
    ]
    for columns, rows in without:
        assert plot_of(QueryResult(columns=columns, rows=list(rows))) is None


def test_a_csv_carries_nothing_out_and_ids_are_those_of_documents() -> None:
    data = csv_of(("=a", "b"), [("=1+1", 1), ("@x", None), ("plain, text", 2.5)])
    assert data.decode().splitlines() == ["'=a,b", "'=1+1,1", "'@x,", '"plain, text",2.5']
    answer = QueryResult(columns=("doc_id", "n"), rows=[("ab" * 16, 1), ("no id", 2), (None, 3)])
    assert doc_ids_of(answer) == [bytes.fromhex("ab" * 16)]
    assert doc_ids_of(QueryResult(columns=("n",), rows=[(1,)])) == []
