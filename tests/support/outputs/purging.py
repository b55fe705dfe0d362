"""Purges of a small OUT, and what must hold after one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from lineage.purge.execution import PurgeResult, apply
from lineage.purge.plan import PurgeMatch, plan_purge
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from tests.support.outputs.byte_search import everything
from tests.support.outputs.small_out.hooks import apply_hooks, ordered, plan_hooks, verify_hooks
from tests.support.outputs.small_out.output import SmallOut
from tests.support.outputs.small_out.records import Record
from tests.support.stores.faulty_disk import Commands, Ended


def by_doc(*records: Record) -> PurgeMatch:
    return PurgeMatch(kind="doc", values=tuple(record.doc_id.hex() for record in records))


def purge(out: Folder, match: PurgeMatch, wait_seconds: float = 0) -> PurgeResult:
    """Carry it out in this process; `wait_seconds`: for another that holds the output."""
    return apply(out, ordered(match), plan_hooks(), apply_hooks(), wait_seconds)


class Purges:
    """Calls of `sluice purge --apply` for the document `original`, each in a process of its own."""

    def __init__(self, commands: Commands, template: SmallOut) -> None:
        """`commands`: prepared with `SET_HOOKS`."""
        self._commands, self._doc = commands, template.named["original"].doc_id.hex()

    def purge(self, out: str, env: Mapping[str, str] | None = None) -> Ended:
        named = ("--reason", "a test", "--by", "a test")
        return self._commands.call("purge", out, "--doc", self._doc, *named, "--apply", env=env)


SET_HOOKS: Final = "tests.support.outputs.small_out.hooks:set_hooks"


def roles(out: Folder, match: PurgeMatch) -> dict[bytes, str]:
    return {row.doc_id: row.role for row in plan_purge(out, match, plan_hooks()).rows}


def traces_of(small: SmallOut, record: Record) -> list[bytes]:
    """What may be left nowhere: pieces of the text, and of its tokens as uint32."""
    words = record.text.split(" ")
    pieces = [" ".join(words[i : i + 4]).encode() for i in range(0, len(words) - 4, 4)]
    tokens = small.tokenizer.encode(record.text)
    return pieces + [
        np.ascontiguousarray(tokens[i : i + 8], dtype="<u4").tobytes() for i in range(0, len(tokens) - 8, 8)
    ]


def assert_gone(small: SmallOut, contents: Iterator[bytes], *records: Record) -> None:
    wanted = [trace for record in records for trace in traces_of(small, record)]
    for data in everything(contents):
        assert not [trace for trace in wanted if trace in data]


def assert_whole(out: Folder) -> None:
    assert verify(out, verify_hooks()).problems == ()
