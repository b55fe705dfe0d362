"""Decisions inside a component: greedy against what is kept, in an order that arrival cannot change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stages.dedup.decide import ComponentMember, DedupDecision, NearEdge, decide
from stages.dedup.options import DedupTable


def member(number: int, *, text: int | None = None, url: str | None = None, **options: Any) -> ComponentMember:
    """Document `number`, of doc_id `number`; `text` its text's number (its own, if not given)."""
    given_options = {"num_chars": 100, "captured_at": None, "has_words": True, "earlier": False} | options
    return ComponentMember(
        node=number,
        doc_id=bytes([number]) * 16,
        clean_hash=bytes([number if text is None else text]) * 16,
        url_key=None if url is None else url.encode() * 16,
        **given_options,
    )


def near(a: int, b: int, similarity: float = 0.9) -> NearEdge:
    return NearEdge(a=a, b=b, similarity=similarity)


def outcome(members: list[ComponentMember], edges: list[NearEdge], **options: Any) -> dict[int, tuple[str, int] | None]:
    """For each document None if it is kept, else the stage that drops it and whom it repeats."""
    return {
        decision.node: None if decision.stage is None else (decision.stage, (decision.duplicate_of or b"?")[0])
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
    members = [member(1), member(2, captured_at="2024-05-01T00:00:00Z"), member(3, captured_at="2023-05-01T00:00:00Z")]
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
    members = [member(1, captured_at="2024-05-01T00:00:00.500000Z"), member(2, captured_at="2024-05-01T00:00:00Z")]
    assert outcome(members, [near(1, 2)], keep="newest") == {1: None, 2: ("dedup.near", 1)}
    assert outcome(members, [near(1, 2)], keep="earliest") == {2: None, 1: ("dedup.near", 2)}


def test_documents_of_earlier_runs_stay_and_get_no_decision() -> None:
    members = [member(1, num_chars=999), member(2, earlier=True), member(3, earlier=True)]
    assert outcome(members, [near(1, 3)]) == {1: ("dedup.near", 3)}


def test_of_several_earlier_documents_the_first_in_order_is_named() -> None:
    earlier = [member(n, text=7, url="u", earlier=True, num_chars=chars) for n, chars in ((3, 100), (2, 100), (4, 200))]
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
    members = [member(1, url="u", num_chars=300), member(2, url="u", text=7, num_chars=200), member(3, text=7)]
    assert outcome(members, []) == {1: None, 2: ("dedup.url", 1), 3: None}


def test_equal_texts_count_as_near_where_exact_is_off_if_they_have_words() -> None:
    members = [member(1, text=7), member(2, text=7)]
    (_, dropped) = decide(members, [], DedupTable(exact=False))
    assert (dropped.stage, dropped.similarity, dropped.threshold) == ("dedup.near", 1.0, 0.8)
    assert outcome([replace(m, has_words=False) for m in members], [], exact=False) == {1: None, 2: None}
    assert outcome(members, [], exact=False, near=False) == {1: None, 2: None}


def test_values_say_how_similar_and_against_what() -> None:
    members = [member(4, url="u"), member(5, url="u"), member(6, text=4), member(7)]
    found = {d.node: d for d in decide(members, [near(4, 7, 0.85)], DedupTable())}
    assert found[4] == DedupDecision(node=4, doc_id=bytes([4]) * 16, cluster_id=bytes([4]) * 16)
    assert [(found[n].similarity, found[n].threshold) for n in (5, 6, 7)] == [(None, None), (1.0, 1.0), (0.85, 0.8)]
    assert {d.cluster_id for d in found.values()} == {bytes([4]) * 16}


COMPONENTS = st.tuples(
    st.lists(
        st.builds(
            dict,
            text=st.integers(0, 6),
            url=st.sampled_from([None, "u", "v"]),
            num_chars=st.just(100),
            captured_at=st.sampled_from([None, "2020", "2021"]),
            earlier=st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.sampled_from([0.8, 0.9])), max_size=15),
    st.sampled_from(["longest", "earliest"]),
    st.booleans(),
)


def _component(drawn: tuple[Any, ...]) -> tuple[list[ComponentMember], list[NearEdge], DedupTable]:
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


@given(COMPONENTS)
def test_the_dropped_have_an_edge_to_a_kept_one_and_the_kept_have_none_among_them(drawn: tuple[Any, ...]) -> None:
    members, edges, table = _component(drawn)
    by_node = {m.node: m for m in members}
    similarity = {}
    for edge in edges:
        ends = by_node[edge.a].clean_hash, by_node[edge.b].clean_hash
        similarity[ends] = similarity[ends[::-1]] = edge.similarity

    def edge_between(a: ComponentMember, b: ComponentMember) -> set[tuple[str, float | None]]:
        found: set[tuple[str, float | None]] = set()
        if a.url_key is not None and a.url_key == b.url_key:
            found.add(("dedup.url", None))
        if a.clean_hash == b.clean_hash:
            found.add(("dedup.exact", 1.0) if table.exact else ("dedup.near", 1.0))
        if (a.clean_hash, b.clean_hash) in similarity:
            found.add(("dedup.near", similarity[a.clean_hash, b.clean_hash]))
        return found

    decisions = decide(members, edges, table)
    kept = [by_node[d.node] for d in decisions if d.stage is None]
    standing = kept + [m for m in members if m.earlier]
    assert {d.node for d in decisions} == {m.node for m in members if not m.earlier}
    for decision in decisions:
        others = [m for m in standing if m.node != decision.node]
        if decision.stage is None:
            assert not any(edge_between(by_node[decision.node], other) for other in others)
        else:
            named = [m for m in others if m.doc_id == decision.duplicate_of]
            assert (decision.stage, decision.similarity) in edge_between(by_node[decision.node], named[0])
