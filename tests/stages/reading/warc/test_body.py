"""Codings of HTTP bodies undone, within a bound."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stages.reading.warc.body import BodyTooLongError, decode_body
from stages.reading.warc.headers import parse_http_head


def chunked(body: bytes, size: int) -> bytes:
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    return (
        b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nTrailer: x\r\n\r\n"
    )


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


@given(
    body=st.binary(min_size=1, max_size=2000), names=st.lists(st.sampled_from(sorted(CODINGS)), max_size=3)
)
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


@pytest.mark.parametrize("name", ["deflate", "br", "chunked"])
@pytest.mark.parametrize(
    "page",
    [
        b"copy, is not conveying. Propagation includes copying, with or without modification, making available to the "
        b"public, and in some countries other activities as well. To convey a work means any kind of propagation",
        b"authors' sake, the licence requires that modified versions be marked as changed, so that their "
        b"problems will not be attributed erroneously to authors of previous versions. Some devices are designed",
        b"2024\n" + b"a year in review\n" * 9,
        b"9\nlives \n a cat has, and no more\n",
        b"+1 for this, and other words of a few bytes",
        "Wörter in Latin-1, für die es keine UTF-8-Form gibt".encode("latin-1"),
    ],
)
def test_text_that_a_decoder_takes_for_coded_keeps_its_first_bytes(page: bytes, name: str) -> None:
    assert decode_body(page, name, 1 << 20) == page


def decodes_to_a_beginning(page: bytes, payload: bytes, name: str, at_least: int) -> bool:
    found = decode_body(payload, name, 1 << 20)
    return page.startswith(found) and len(found) >= at_least


@pytest.mark.parametrize("name", ["gzip", "deflate", "chunked", "br"])
def test_a_body_that_breaks_off_gives_what_it_has(name: str) -> None:
    page = bytes(range(256)) * 200
    payload = CODINGS[name](page)
    assert decodes_to_a_beginning(page, payload[: len(payload) - 30], name, 1)


PROSE = b" ".join(b"%d sheep" % (number * number % 1_000_003) for number in range(20_000))
"""250 kB of which each coding makes a third: more than one slice, and more than one block of zstd."""


@pytest.mark.parametrize("name", ["gzip", "deflate", "br"])
@pytest.mark.parametrize("num_bytes", [9_000, len(PROSE)])
def test_a_damaged_body_gives_all_that_stands_before_the_damage(name: str, num_bytes: int) -> None:
    page = PROSE[:num_bytes]
    payload = CODINGS[name](page)
    half = len(payload) // 2
    broken_off = decode_body(payload[:half], name, 1 << 20)
    damaged = decode_body(payload[:half] + payload[:half:-1], name, 1 << 20)
    assert len(broken_off) > num_bytes // 8
    assert damaged.startswith(broken_off)


def test_a_damaged_zstd_body_gives_its_whole_blocks() -> None:
    payload = CODINGS["zstd"](PROSE)
    assert decodes_to_a_beginning(PROSE, payload[:-2000] + payload[:2000], "zstd", 128 << 10)
    assert decode_body(CODINGS["zstd"](PROSE[:9_000])[:-50], "zstd", 1 << 20) == b""


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
