"""Text of UTF-8 that keeps its UTF-8."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.reading.charset import decode_text
from stages.reading.utf8 import text_of_utf8


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_it_is_what_python_decodes(octets: bytes) -> None:
    try:
        text = octets.decode()
    except UnicodeDecodeError as error:
        with pytest.raises(UnicodeDecodeError) as raised:
            text_of_utf8(octets)
        assert raised.value.args == error.args
        return
    found = text_of_utf8(octets)
    assert (found, hash(found), found.encode(), found.encode("utf-16")) == (
        text,
        hash(text),
        octets,
        text.encode("utf-16"),
    )


@pytest.mark.parametrize("text", ["größer", "Ω\0Ω", "東京", "😀😀", "é" * 100_000])
def test_its_utf8_is_there_at_once(text: str) -> None:
    octets = text.encode()
    kept = sys.getsizeof(octets.decode()) + len(octets) + 1
    assert sys.getsizeof(text_of_utf8(octets)) == kept
    assert sys.getsizeof(decode_text(octets)[0]) == kept


@pytest.mark.parametrize("text", ["", "a", "é", "Ω", "plain", "a\0b"])
def test_what_may_be_shared_or_needs_none_stays_as_it_is(text: str) -> None:
    octets = text.encode()
    assert sys.getsizeof(text_of_utf8(octets)) == sys.getsizeof(octets.decode())


def test_its_utf8_goes_with_it() -> None:
    octets = "é".encode() * 100  # small enough for CPython to count its blocks
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1_000):
        text_of_utf8(octets)
    assert sys.getallocatedblocks() - before < 100
