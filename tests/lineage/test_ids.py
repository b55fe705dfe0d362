"""Identities: fixed values, independence of order, no two inputs that read alike."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lineage import ids

IDS = st.binary(min_size=ids.ID_BYTES, max_size=ids.ID_BYTES)
TEXTS = st.text(st.characters(), max_size=30)  # lone surrogates too
WARC_ID, ROW_ID = "6e21118c8a15762e0e1b50f01dc7ee31", "42f620d721e83a72d79e080e568be49c"
PARTS = st.lists(st.binary(max_size=20), max_size=5)


def test_names_are_the_first_128_bits_of_blake3() -> None:
    # https://github.com/BLAKE3-team/BLAKE3/blob/master/test_vectors/test_vectors.json, input length 0
    assert ids.content_hash(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc949"
    assert ids.content_hash(memoryview(b"abc")) == blake3(b"abc").digest()[:16]
    assert ids.text_hash("żółw") == ids.content_hash("żółw".encode())


def test_an_id_is_the_same_for_ever() -> None:
    assert ids.warc_doc_id("<urn:uuid:1>", "https://a.example/", b"<p>a").hex() == WARC_ID
    assert ids.row_doc_id("web", "a.jsonl", "7", "text").hex() == ROW_ID


@given(TEXTS)
def test_every_text_has_a_hash_also_with_lone_surrogates(text: str) -> None:
    assert len(ids.text_hash(text)) == ids.ID_BYTES
    odd = [text, *(text + end for end in ("\ud800", "\udfff", "?", "\ufffd"))]
    assert len({ids.text_hash(each) for each in odd}) == len(odd)


def test_tokens_are_hashed_as_little_endian_uint32_whatever_their_type() -> None:
    raw = bytes([1, 0, 0, 0, 0, 1, 0, 0])
    for dtype in ("<u4", ">u4", "<i8"):
        assert ids.tokens_hash(np.array([1, 256], dtype=dtype)) == ids.content_hash(raw)
    assert ids.tokens_hash(np.arange(6, dtype=np.uint32)[::2]) == ids.tokens_hash(
        np.array([0, 2, 4], dtype=np.uint32)
    )


@given(PARTS, PARTS)
def test_two_lists_of_parts_never_read_alike(left: list[bytes], right: list[bytes]) -> None:
    assert (ids.length_prefixed(*left) == ids.length_prefixed(*right)) == (left == right)


@pytest.mark.parametrize(("one", "other"), [(("ab", "c"), ("a", "bc")), (("", "abc"), ("abc", ""))])
def test_a_letter_that_moves_between_fields_makes_another_id(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert ids.warc_doc_id(*one, b"") != ids.warc_doc_id(*other, b"")
    assert ids.row_doc_id("s", *one, "t") != ids.row_doc_id("s", *other, "t")


def test_headers_that_are_not_utf8_have_ids_of_their_own() -> None:
    names = ["\udcff", "\udcfe", "?", ""]
    assert len({ids.warc_doc_id(name, uri, b"") for name in names for uri in names}) == len(names) ** 2


@given(st.lists(IDS, max_size=20), st.randoms(use_true_random=False), st.integers(0, 20))
def test_a_digest_depends_on_no_order_and_adds_up(found: list[bytes], rng: object, cut: int) -> None:
    shuffled = list(found)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    whole = ids.id_digest(found)
    assert ids.id_digest(shuffled) == whole
    assert ids.add_digests((ids.id_digest(shuffled[:cut]), ids.id_digest(shuffled[cut:]))) == whole
    assert ids.add_digests((whole, -ids.id_digest(found[:cut]))) == ids.id_digest(found[cut:])


@given(st.lists(IDS, min_size=1, max_size=5))
def test_a_digest_counts_how_often_an_id_is_there(found: list[bytes]) -> None:
    nothing = bytes(ids.ID_BYTES)
    assert (ids.id_digest([*found, found[0]]) == ids.id_digest(found)) == (found[0] == nothing)


def test_digests_wrap_and_are_shown_as_32_digits() -> None:
    assert ids.id_digest([b"\xff" * 16, b"\x00" * 15 + b"\x02"]) == 1
    assert ids.show_digest(1) == "0" * 31 + "1"
    assert ids.show_digest(-1) == "f" * 32


@given(IDS)
def test_an_id_that_is_shown_reads_back(doc_id: bytes) -> None:
    assert ids.parse_id(f"  {doc_id.hex().upper()}\n") == doc_id


@pytest.mark.parametrize(
    "wrong", ["", "abc", "g" * 32, "0" * 31, "0" * 33, "0x" + "0" * 30, "0" * 15 + " " + "0" * 16, "٠" * 32]
)
def test_what_is_no_id_is_refused_with_its_text(wrong: str) -> None:
    with pytest.raises(ValueError, match="expected 32 hexadecimal digits") as error:
        ids.parse_id(wrong)
    assert repr(wrong) in str(error.value)


@given(st.lists(IDS, min_size=1, max_size=10))
def test_sort_keys_fit_int64_and_keep_the_order_of_ids(found: list[bytes]) -> None:
    keys = ids.sort_keys(found)
    assert keys.dtype == np.int64
    assert keys.tolist() == [ids.sort_key(doc_id) for doc_id in found]
    assert min(keys) >= 0
    assert [ids.sort_key(doc_id) for doc_id in sorted(found)] == sorted(keys.tolist())
    assert ids.sort_keys([]).shape == (0,)


def test_the_digest_of_a_set_is_met_by_no_other_set() -> None:
    one, two, three = (bytes([number]) * 16 for number in (1, 2, 3))
    others = bytes([2]) * 15 + bytes([1]), bytes([2]) * 15 + bytes([3])
    assert ids.id_digest([one, three]) == ids.id_digest(others)  # a sum, which others can be made to meet
    assert ids.set_digest([one, three]) != ids.set_digest(others)
    assert ids.show_digest(ids.id_digest([one])) == one.hex() != ids.set_digest([one])[:32]
    assert ids.set_digest([two, one]) == ids.set_digest([one, two, one])
    # As docs/forgetting.md says it is made.
    context = "sluice 2026-11-28 ids of the documents of a purge"
    assert ids.set_digest([two, one]) == blake3(one + two, derive_key_context=context).hexdigest()
