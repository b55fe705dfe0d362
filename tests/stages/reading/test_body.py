"""Codings of HTTP bodies undone, within a bound."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stages.reading.body import BodyTooLongError, decode_body
from stages.reading.headers import parse_http_head


def chunked(body: bytes, size: int) -> bytes:
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    return b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nTrailer: x\r\n\r\n"


def raw_deflate(body: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflater.compress(body) + deflater.flush()


CODINGS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "chunked": lambda body: chunked(body, 7),
}


@given(body=st.binary(min_size=1, max_size=2000), names=st.lists(st.sampled_from(sorted(CODINGS)), max_size=3))
def test_codings_are_undone_in_the_reverse_of_their_order(body: bytes, names: list[str]) -> None:
    payload = body
    for name in names:
        payload = CODINGS[name](payload)
    assert decode_body(payload, ", ".join(names), 1 << 20) == body


def test_bare_deflate_is_understood() -> None:
    assert decode_body(raw_deflate(b"page " * 100), "deflate", 1000) == b"page " * 100


@pytest.mark.parametrize("bits", range(9, 16))
def test_deflate_with_any_window_is_understood(bits: int) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, bits)
    payload = deflater.compress(b"page " * 100) + deflater.flush()
    assert decode_body(payload, "deflate", 1000) == b"page " * 100


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_bomb_is_refused(name: str) -> None:
    bomb = CODINGS[name](bytes(30 << 20))
    with pytest.raises(BodyTooLongError, match="more than 1000000 bytes"):
        decode_body(bomb, name, 1_000_000)


@pytest.mark.parametrize("name", [*CODINGS, "klingon", "", None])
def test_a_body_that_is_not_coded_as_it_says_is_taken_as_it_is(name: str | None) -> None:
    page = b"<!DOCTYPE html><html><body>Not coded at all.</body></html>"
    assert decode_body(page, name, 1000) == page


@pytest.mark.parametrize("name", ["gzip", "deflate", "chunked"])
def test_a_body_that_breaks_off_gives_what_it_has(name: str) -> None:
    page = bytes(range(256)) * 200
    payload = CODINGS[name](page)
    found = decode_body(payload[: len(payload) - 30], name, 1 << 20)
    assert found
    assert page.startswith(found)


@given(payload=st.binary(max_size=500), name=st.sampled_from(sorted(CODINGS)), limit=st.integers(0, 600))
def test_any_bytes_give_a_body_within_the_bound_or_are_refused(payload: bytes, name: str, limit: int) -> None:
    whole = decode_body(payload, name, 1 << 26)
    if len(whole) > limit:
        with pytest.raises(BodyTooLongError):
            decode_body(payload, name, limit)
    else:
        assert decode_body(payload, name, limit) == whole


def test_codings_that_several_lines_name_add_up_and_of_other_fields_the_first_counts() -> None:
    lines = [
        "Transfer-Encoding: gzip",
        "Content-Type: text/html",
        "transfer-encoding: chunked",
        "Content-Type: text/plain",
    ]
    head = parse_http_head("\r\n".join(["HTTP/1.1 200 OK", *lines, ""]).encode())
    assert head is not None
    assert (head.encoding, head.content_type) == ("gzip,chunked", "text/html")
