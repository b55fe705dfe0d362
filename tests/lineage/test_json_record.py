"""Records that are kept as JSON come back as they were, and a key that does not fit is seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.json_record import JsonRecord, json_name, left_out_at


class Pair(NamedTuple):
    """Becomes a list."""

    name: str
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """Becomes an object; needs no base."""

    name: str
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(JsonRecord):
    """One field of each kind."""

    num_bytes: int = json_name("bytes")
    share: float | None
    counts: Mapping[str, Mapping[str, int]]
    pairs: tuple[Pair, ...]
    inner: Inner
    perhaps: Inner | None
    many: tuple[Inner, ...]
    note: str = "none"
    times: int = left_out_at(1)


NAMES = st.text(max_size=4)
INNER = st.builds(
    Inner, name=NAMES, spans=st.lists(st.tuples(st.integers(), st.integers()), max_size=2).map(tuple)
)
RECORDS = st.builds(
    Outer,
    num_bytes=st.integers(),
    share=st.none() | st.floats(allow_nan=False),
    counts=st.dictionaries(NAMES, st.dictionaries(NAMES, st.integers(), max_size=2), max_size=2),
    pairs=st.lists(st.builds(Pair, NAMES, st.integers()), max_size=2).map(tuple),
    inner=INNER,
    perhaps=st.none() | INNER,
    many=st.lists(INNER, max_size=2).map(tuple),
    note=NAMES,
    times=st.integers(),
)


@given(RECORDS)
def test_a_record_comes_back_from_its_json_as_it_was(record: Outer) -> None:
    again = Outer.from_json(json.loads(json.dumps(record.to_json())))
    assert again == record
    assert [type(pair) for pair in again.pairs] == [Pair] * len(record.pairs)


@given(RECORDS)
def test_keys_are_those_of_the_fields_in_their_order(record: Outer) -> None:
    keys = ["bytes", "share", "counts", "pairs", "inner", "perhaps", "many", "note"]
    assert list(record.to_json()) == keys + ["times"] * (record.times != 1)


@given(RECORDS)
def test_a_key_too_many_or_a_missing_one_without_a_default_is_refused(record: Outer) -> None:
    plain = record.to_json()
    with pytest.raises(TypeError, match="bites"):
        Outer.from_json({**plain, "bites": 1})
    with pytest.raises(TypeError, match="nmae"):
        Outer.from_json({**plain, "inner": {"nmae": "a"}})
    for key in plain:
        rest = {name: value for name, value in plain.items() if name != key}
        if key in ("note", "times"):
            assert getattr(Outer.from_json(rest), key) == {"note": "none", "times": 1}[key]
        else:
            with pytest.raises(TypeError, match=key):
                Outer.from_json(rest)


def test_a_record_made_by_hand_has_no_default_for_a_renamed_field() -> None:
    with pytest.raises(TypeError, match="num_bytes"):
        Outer(share=None, counts={}, pairs=(), inner=Inner(name="a"), perhaps=None, many=())  # type: ignore[call-arg]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs(JsonRecord):
    """Has tuples of fixed length, of values of different kinds."""

    runs: tuple[tuple[str, int, Pair], ...]


def test_tuples_of_values_of_different_kinds_come_back() -> None:
    record = Runs(runs=(("a", 1, Pair("b", 2)), ("c", 3, Pair("d", 4))))
    assert Runs.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize("plain", [[], "text", 1, None, {"runs": 1}])
def test_what_is_no_object_of_the_record_is_refused(plain: object) -> None:
    with pytest.raises(TypeError):
        Runs.from_json(plain)
