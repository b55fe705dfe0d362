"""JSON of others is read to one depth, whatever calls: Python's own reader stops where its caller's stack says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from stages.document import Document
from stages.nesting import MAX_DEPTH, TooDeepError, read_json
from stages.quality.code.notebooks import cells
from stages.reading.jsonl import read_jsonl
from stages.reading.options import InputCounts, ReadOptions
from stages.rights.page import html_signals
from stages.rights.tdmrep import read_tdmrep

DEEP_STACK = 400
DEEPER_THAN_THE_STACK_LEAVES = 700


def below(num_frames: int, call: Callable[[], Any]) -> Any:
    return call() if num_frames == 0 else below(num_frames - 1, call)


def nested(depth: int, inside: str = "") -> str:
    return "[" * depth + inside + "]" * depth


def read_row(depth: int) -> bool:
    row = b'{"text": "a", "x": ' + nested(depth).encode() + b"}\n"
    options = ReadOptions(source="s", file="f", max_document_bytes=1 << 20)
    (found,) = read_jsonl(io.BytesIO(row), options, InputCounts())
    return isinstance(found, Document)


def read_license(depth: int) -> int:
    given = nested(depth, '{"license": "https://example.com/terms"}')
    page = f'<html><head><script type="application/ld+json">{given}</script></head></html>'
    return len(list(html_signals(page, ())))


def read_rules(depth: int) -> bool:
    return read_tdmrep('[{"location": "/", "tdm-reservation": 1, "x": ' + nested(depth) + "}]") is not None


def read_notebook(depth: int) -> bool:
    plain = {"cells": [{"cell_type": "code", "source": "a = 1"}]}
    try:
        cells(json.dumps(plain)[:-1] + ', "metadata": ' + nested(depth) + "}")
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("read", [read_row, read_license, read_rules, read_notebook])
def test_what_is_read_does_not_depend_on_the_callers_stack(read: Callable[[int], object]) -> None:
    assert read(MAX_DEPTH - 10) and below(DEEP_STACK, lambda: read(MAX_DEPTH - 10))
    depth = DEEPER_THAN_THE_STACK_LEAVES
    assert read(depth) == below(DEEP_STACK, lambda: read(depth))
    assert not read(depth)


@pytest.mark.parametrize("outer", ["[", '{"a": '])
def test_the_depth_is_counted_to_the_level(outer: str) -> None:
    end = {"[": "]", '{"a": ': "}"}[outer]
    assert read_json(outer * MAX_DEPTH + "1" + end * MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(TooDeepError, match="nested more than 200 deep"):
            read_json(outer * depth + "1" + end * depth)
    assert read_json(b'"plain"') == "plain" and read_json("[1, {}]") == [1, {}]
