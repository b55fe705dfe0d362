"""Decisions inside components: greedy against what is kept, in an order that arrival cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lineage.storage.folder import Folder
from pipeline.dedup.inputs import ID, is_earlier
from pipeline.dedup.rows import Context
from pipeline.dedup.verdicts import decisions
from stages.dedup.decide import DEDUP_STAGES
from stages.dedup.options import DedupTable

EARLIER = 1 << 62
"""Added to the node of a document of an earlier run."""
PARTITION = pa.schema(
    {
        "node": pa.int64(), "label": pa.int64(), "b": pa.int64(), "similarity": pa.float64(), "doc_id": ID,
        "clean_hash": ID, "url_key": ID, "num_chars": pa.int64(), "captured_at": pa.string(), "has_words": pa.bool_(),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A document of a component, and of an earlier run if `earlier`."""

    number: int
    doc_id: bytes
    clean_hash: bytes
    url_key: bytes | None
    num_chars: int
    captured_at: str | None
    has_words: bool
    earlier: bool
    component: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NearEdge:
    """Two members, by number, whose texts have this verified Jaccard."""

    a: int
    b: int
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of a member. Kept: None from `stage` on."""

    number: int
    doc_id: bytes
    cluster_id: bytes
    stage: str | None = None
    duplicate_of: bytes | None = None
    similarity: float | None = None
    threshold: float | None = None


def decide(members: Sequence[Member], edges: Sequence[NearEdge], table: DedupTable) -> list[Decision]:
    """The decisions on whole components, as a partition of an exchange comes to them."""
    context = Context(table=table, folder=Folder("."), num_partitions=1, slice_starts=(0,), group_starts=(0,))
    rows = decisions(context, 0, partition(members, edges)).rows
    for row in rows.to_pylist():
        assert (row["status"], row["rule"], row["value"]) == (
            "duplicate" if row["stage"] else "kept",
            row["stage"],
            row["similarity"],
        )
    names = ("doc_id", "cluster_id", "stage", "duplicate_of", "similarity", "threshold")
    return [Decision(number=row["node"], **{name: row[name] for name in names}) for row in rows.to_pylist()]


def partition(members: Sequence[Member], edges: Sequence[NearEdge]) -> pa.Table:
    """Rows of documents (without b), and of edges."""
    node = {m.number: m.number + (EARLIER if m.earlier else 0) for m in members}
    label = {m.number: m.component for m in members}
    assert all(is_earlier(np.array([node[m.number]]))[0] == m.earlier for m in members)
    documents = [
        {
            "node": node[m.number],
            "label": m.component,
            "b": -1,
            "similarity": 0.0,
            **{
                name: getattr(m, name)
                for name in ("doc_id", "clean_hash", "url_key", "num_chars", "captured_at")
            },
            "has_words": m.has_words,
        }
        for m in members
    ]
    near = [
        {"node": node[e.a], "label": label[e.a], "b": node[e.b], "similarity": e.similarity} for e in edges
    ]
    return pa.Table.from_pylist([*documents, *near], schema=PARTITION)


def member(number: int, *, text: int | None = None, url: str | None = None, **options: Any) -> Member:
    """Document `number`, of doc_id `number`; `text` its text's number (its own, if not given)."""
    given_options = {"num_chars": 100, "captured_at": None, "has_words": True, "earlier": False} | options
    return Member(
        number=number,
        doc_id=bytes([number]) * 16,
        clean_hash=bytes([number if text is None else text]) * 16,
        url_key=None if url is None else url.encode() * 16,
        **given_options,
    )


def near(a: int, b: int, similarity: float = 0.9) -> NearEdge:
    return NearEdge(a=a, b=b, similarity=similarity)


def outcome(
    members: list[Member], edges: list[NearEdge], **options: Any
) -> dict[int, tuple[str, int] | None]:
    """For each document None if it is kept, else the stage that drops it and whom it repeats."""
    return {
        decision.number: None
        if decision.stage is None
        else (decision.stage, (decision.duplicate_of or b"?")[0])
        for decision in decide(members, edges, DedupTable(**options))
    }


def test_without_an_edge_between_them_the_ends_of_a_chain_both_stay() -> None:
    members = [member(1), member(2), member(3)]
    assert outcome(members, [near(1, 2), near(2, 3)]) == {1: None, 2: ("dedup.near", 1), 3: None}


def test_the_longest_stays_then_the_least_id() -> None:
    members = [member(1), member(2, num_chars=200), member(3, num_chars=200)]
    edges = [near(1, 2), near(1, 3), near(2, 3)]
    assert outcome(members, edges) == {2: None, 1: ("dedup.near", 2), 3: ("dedup.near", 2)}


def test_the_earliest_stays_and_one_without_date_comes_last() -> None:
    members = [
        member(1),
        member(2, captured_at="2024-05-01T00:00:00Z"),
        member(3, captured_at="2023-05-01T00:00:00Z"),
    ]
    edges = [near(1, 2), near(1, 3), near(2, 3)]
    expected = {3: None, 2: ("dedup.near", 3), 1: ("dedup.near", 3)}
    assert outcome(members, edges, keep="earliest") == expected


def test_the_newest_stays_then_the_least_id_and_one_without_date_comes_last() -> None:
    dated = [(2, "2023-05-01T00:00:00Z"), (3, "2024-05-01T00:00:00Z"), (4, "2024-05-01T00:00:00Z")]
    members = [member(1, num_chars=999), *(member(number, captured_at=at) for number, at in dated)]
    edges = [near(a, b) for a in range(1, 5) for b in range(a + 1, 5)]
    expected = {3: None} | dict.fromkeys((1, 2, 4), ("dedup.near", 3))
    assert outcome(members, edges, keep="newest") == expected
    earlier = member(5, earlier=True)
    to_earlier = [near(number, 5) for number in range(1, 5)]
    expected = dict.fromkeys(range(1, 5), ("dedup.near", 5))
    assert outcome([*members, earlier], to_earlier, keep="newest") == expected


def test_fractions_of_a_second_are_told_apart() -> None:
    members = [
        member(1, captured_at="2024-05-01T00:00:00.500000Z"),
        member(2, captured_at="2024-05-01T00:00:00Z"),
    ]
    assert outcome(members, [near(1, 2)], keep="newest") == {1: None, 2: ("dedup.near", 1)}
    assert outcome(members, [near(1, 2)], keep="earliest") == {2: None, 1: ("dedup.near", 2)}


def test_documents_of_earlier_runs_stay_and_get_no_decision() -> None:
    members = [member(1, num_chars=999), member(2, earlier=True), member(3, earlier=True)]
    assert outcome(members, [near(1, 3)]) == {1: ("dedup.near", 3)}


def test_of_several_earlier_documents_the_first_in_order_is_named() -> None:
    earlier = [
        member(n, text=7, url="u", earlier=True, num_chars=chars)
        for n, chars in ((3, 100), (2, 100), (4, 200))
    ]
    assert outcome([member(1, url="u"), *earlier], []) == {1: ("dedup.url", 4)}
    assert outcome([member(1, text=7), *earlier], []) == {1: ("dedup.exact", 4)}
    assert outcome([member(1), *earlier], [near(1, 2)]) == {1: ("dedup.near", 4)}


def test_the_first_stage_with_an_edge_names_the_duplicate() -> None:
    members = [member(1, text=7, url="u"), member(2, text=7), member(3, text=7, url="u")]
    assert outcome(members, []) == {1: None, 2: ("dedup.exact", 1), 3: ("dedup.url", 1)}


def test_a_copy_of_a_dropped_text_is_dropped_for_what_that_text_resembles() -> None:
    members = [member(1, text=7), member(2, text=7), member(3, num_chars=200)]
    assert outcome(members, [near(1, 3, 0.85)]) == {3: None, 1: ("dedup.near", 3), 2: ("dedup.near", 3)}


def test_a_document_dropped_by_url_does_not_speak_for_its_text() -> None:
    """2 falls by URL to 1; 3 has the text of 2, but 2 is not kept, and the text of 1 is another."""
    members = [
        member(1, url="u", num_chars=300),
        member(2, url="u", text=7, num_chars=200),
        member(3, text=7),
    ]
    assert outcome(members, []) == {1: None, 2: ("dedup.url", 1), 3: None}


def test_equal_texts_count_as_near_where_exact_is_off_if_they_have_words() -> None:
    members = [member(1, text=7), member(2, text=7)]
    (_, dropped) = decide(members, [], DedupTable(exact=False))
    assert (dropped.stage, dropped.similarity, dropped.threshold) == ("dedup.near", 1.0, 0.8)
    assert outcome([replace(m, has_words=False) for m in members], [], exact=False) == {1: None, 2: None}
    assert outcome(members, [], exact=False, near=False) == {1: None, 2: None}


def test_values_say_how_similar_and_against_what() -> None:
    members = [member(4, url="u"), member(5, url="u"), member(6, text=4), member(7)]
    found = {d.number: d for d in decide(members, [near(4, 7, 0.85)], DedupTable())}
    assert found[4] == Decision(number=4, doc_id=bytes([4]) * 16, cluster_id=bytes([4]) * 16)
    assert [(found[n].similarity, found[n].threshold) for n in (5, 6, 7)] == [
        (None, None),
        (1.0, 1.0),
        (0.85, 0.8),
    ]
    assert {d.cluster_id for d in found.values()} == {bytes([4]) * 16}


COMPONENTS = st.tuples(
    st.lists(
        st.builds(
            dict,
            text=st.integers(0, 6),
            url=st.sampled_from([None, "u", "v"]),
            num_chars=st.sampled_from([100, 200]),
            captured_at=st.sampled_from([None, "", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00.5Z", "2021"]),
            earlier=st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.sampled_from([0.8, 0.9])), max_size=15),
    st.sampled_from(["longest", "earliest", "newest"]),
    st.booleans(),
)


def _component(drawn: tuple[Any, ...]) -> tuple[list[Member], list[NearEdge], DedupTable]:
    rows, pairs, keep, exact = drawn
    members = [member(number, **row) for number, row in enumerate(rows)]
    edges = {
        tuple(sorted((members[a].clean_hash, members[b].clean_hash))): near(a, b, s)
        for a, b, s in pairs
        if a < len(rows) and b < len(rows) and rows[a]["text"] != rows[b]["text"]
    }
    return members, list(edges.values()), DedupTable(keep=keep, exact=exact)


@given(COMPONENTS, st.randoms(use_true_random=False))
def test_arrival_order_never_matters(drawn: tuple[Any, ...], random: object) -> None:
    members, edges, table = _component(drawn)
    expected = decide(members, edges, table)
    random.shuffle(members)  # type: ignore[attr-defined]
    random.shuffle(edges)  # type: ignore[attr-defined]
    flipped = [NearEdge(a=edge.b, b=edge.a, similarity=edge.similarity) for edge in edges]
    assert decide(members, flipped, table) == expected


def textbook(members: Sequence[Member], edges: Sequence[NearEdge], table: DedupTable) -> list[Decision]:
    """The decisions on one component, by a look at every pair."""
    kept: list[Member] = []
    made: list[Decision] = []
    for taken in sorted(members, key=lambda m: place_of(m, table.keep)):
        found = [
            (edge, other) for other in kept for edge in edges_between(taken, other, members, edges, table)
        ]
        decision = Decision(
            number=taken.number, doc_id=taken.doc_id, cluster_id=min(m.doc_id for m in members)
        )
        if found and not taken.earlier:
            # Of the first stage, and there of the first document.
            (stage, similarity, threshold), other = min(
                found, key=lambda pair: DEDUP_STAGES.index(pair[0][0])
            )
            decision = replace(
                decision, stage=stage, duplicate_of=other.doc_id, similarity=similarity, threshold=threshold
            )
        else:
            kept.append(taken)
        if not taken.earlier:
            made.append(decision)
    return made


def place_of(m: Member, keep: str) -> tuple[Any, ...]:
    time = (m.captured_at or "").removesuffix("Z")
    preferred = {
        "longest": -m.num_chars,
        "earliest": (not time, time),
        "newest": (not time, [*(-ord(letter) for letter in time), 1]),
    }[keep]
    return not m.earlier, preferred, m.doc_id


def edges_between(
    a: Member, b: Member, members: Sequence[Member], edges: Sequence[NearEdge], table: DedupTable
) -> list[tuple[str, float | None, float | None]]:
    text = {m.number: m.clean_hash for m in members}
    found: list[tuple[str, float | None, float | None]] = []
    if a.url_key is not None and a.url_key == b.url_key:
        found.append(("dedup.url", None, None))
    if a.clean_hash == b.clean_hash:
        found.append(("dedup.exact", 1.0, 1.0) if table.exact else ("dedup.near", 1.0, table.threshold))
    ends = sorted((a.clean_hash, b.clean_hash))
    near_ones = [e.similarity for e in edges if sorted((text[e.a], text[e.b])) == ends]
    return found + [("dedup.near", similarity, table.threshold) for similarity in near_ones]


@given(COMPONENTS, COMPONENTS)
def test_every_component_of_a_partition_is_decided_as_a_textbook_does(
    one: tuple[Any, ...], another: tuple[Any, ...]
) -> None:
    (first, first_edges, table), (second, second_edges, _) = _component(one), _component(another)
    second = [
        replace(m, number=m.number + 100, doc_id=bytes([200 - m.number]) * 16, component=1) for m in second
    ]
    second_edges = [replace(edge, a=edge.a + 100, b=edge.b + 100) for edge in second_edges]
    expected = textbook(first, first_edges, table) + textbook(second, second_edges, table)
    assert decide([*second, *first], [*second_edges, *first_edges], table) == expected
