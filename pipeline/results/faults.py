"""Exceptions that reading and steps raised on single records, by kind.

A page that raises is rejected and the run goes on; a bug raises on many, and must be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pipeline.terminal import visible_lines
from stages.document import Rejection
from stages.fault import Fault
from stages.reading.options import Unreadable

READING: Final = "reading"
"""The stage of what a reader raised."""

MOST_KINDS: Final = 50


class StrictError(RuntimeError):
    """A reader or step raised on a record, and the run was to stop there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """One kind of fault: what was raised at one line of the code, on how many records, and on which first.
    `doc_id` is empty for a record that could not be read."""

    stage: str
    error: str
    where: str
    num: int
    file: str
    offset: int
    doc_id: str
    traceback: str
    message: str = ""

    @property
    def kind(self) -> tuple[str, str, str]:
        return self.stage, self.error, self.where

    def line(self) -> str:
        """In one line for a terminal."""
        first = (
            f"document {self.doc_id} ({self.file} at {self.offset})"
            if self.doc_id
            else f"{self.file}, {self.offset}"
        )
        said = f": {' '.join(self.message.split())}" if self.message else ""
        return visible_lines(
            f"{self.stage}: {self.error} at {self.where}, {self.num:,} ×; first on {first}{said}"
        )

    def with_traceback(self) -> str:
        """The line and its traceback, for a terminal."""
        return f"{self.line()}\nTraceback:\n{visible_lines(self.traceback)}"


@dataclass(slots=True)
class FaultTally:
    """The faults of a unit or a run, by kind: the first `MOST_KINDS` kinds."""

    rows: dict[tuple[str, str, str], FaultRow] = field(default_factory=dict)

    def add(self, row: FaultRow) -> None:
        """Count one more; of two of a kind the first one's record is named."""
        known = self.rows.get(row.kind)
        if known is not None:
            self.rows[row.kind] = replace(known, num=known.num + row.num)
        elif len(self.rows) < MOST_KINDS:
            self.rows[row.kind] = row

    def sorted(self) -> list[FaultRow]:
        """The commonest first."""
        return sorted(self.rows.values(), key=lambda row: (-row.num, row.kind))


def fault_of(item: Rejection | Unreadable) -> FaultRow | None:
    """The fault that made a rejection or an unreadable stretch, if one did."""
    fault = item.fault
    if fault is None:
        return None
    if isinstance(item, Unreadable):
        return _row(fault, READING, item.file, item.offset, "")
    place = item.document.place
    return _row(fault, item.finding.stage, place.file, place.offset, item.document.doc_id.hex())


def _row(fault: Fault, stage: str, file: str, offset: int, doc_id: str) -> FaultRow:
    return FaultRow(
        stage=stage,
        error=fault.error,
        where=fault.where,
        num=1,
        file=file,
        offset=offset,
        doc_id=doc_id,
        traceback=fault.traceback,
        message=fault.message,
    )


def as_kept(rows: Sequence[FaultRow]) -> tuple[FaultRow, ...]:
    """The rows as a finished output keeps them: without the messages, which may quote a page."""
    return tuple(replace(row, message="") for row in rows)


def strict_message(row: FaultRow) -> str:
    """What a strict run says at the end."""
    return f"--strict: stopped at the first record on which something raised.\n{row.with_traceback()}"
