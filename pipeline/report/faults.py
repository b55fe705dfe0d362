"""Exceptions that reading and steps raised on single records: counted in each unit, joined for the run, and when they
end it.

A page that raises is turned down and the run goes on; a bug raises on many, and must be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from pipeline.terminal import visible_lines
from stages.chain import error_rule
from stages.document import Rejection
from stages.fault import Fault
from stages.reading.options import Unreadable

READING: Final = "reading"
"""The stage of what a reader raised."""

_MOST_KINDS: Final = 50
_MOST_SHOWN: Final = 5
_ENOUGH_TO_STOP: Final = 100


class TooManyBadRecordsError(RuntimeError):
    """More of the input was bad than the recipe allows."""


class StrictError(RuntimeError):
    """A reader or step raised on a record, and the run was to stop there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """One kind of fault: what was raised at one line of the code, on how many records, and on which first. `doc_id` is
    empty for a record that could not be read."""

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
            f"document {self.doc_id} ({self.file} at {self.offset})" if self.doc_id else f"{self.file}, {self.offset}"
        )
        said = f": {' '.join(self.message.split())}" if self.message else ""
        return visible_lines(f"{self.stage}: {self.error} at {self.where}, {self.num:,} ×; first on {first}{said}")

    def story(self) -> str:
        """With its traceback, for a terminal."""
        return f"{self.line()}\nTraceback:\n{visible_lines(self.traceback)}"


@dataclass(slots=True)
class FaultTally:
    """The faults of a unit or a run, by kind: the first `_MOST_KINDS` kinds."""

    rows: dict[tuple[str, str, str], FaultRow] = field(default_factory=dict)

    def add(self, row: FaultRow) -> None:
        """Count one more; of two of a kind the first one's record is named."""
        known = self.rows.get(row.kind)
        if known is not None:
            self.rows[row.kind] = replace(known, num=known.num + row.num)
        elif len(self.rows) < _MOST_KINDS:
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
    return FaultRow(stage=stage, error=fault.error, where=fault.where, num=1, file=file, offset=offset, doc_id=doc_id,
                    traceback=fault.traceback, message=fault.message)  # fmt: skip


def faults_of(read: Iterable[Mapping[str, Any]]) -> list[FaultRow]:
    """The faults of all units (their unit.json, in plan order), the commonest first."""
    tally = FaultTally()
    for unit in read:
        for row in unit["faults"]:
            tally.add(FaultRow(**row))
    return tally.sorted()


def as_kept(rows: Sequence[FaultRow]) -> list[dict[str, Any]]:
    """The rows as a finished output keeps them: without the messages, which may quote a page."""
    return [asdict(replace(row, message="")) for row in rows]


@dataclass(slots=True)
class BadRecords:
    """Bad records among those read so far: unreadable stretches, and documents on which a step raised."""

    num: int = 0
    num_documents: int = 0
    num_bytes: int = 0
    num_unreadable: int = 0
    num_raised: int = 0

    @classmethod
    def of(cls, read: Iterable[Mapping[str, Any]]) -> BadRecords:
        found = cls()
        for unit in read:
            found.add(unit)
        return found

    def add(self, unit: Mapping[str, Any]) -> None:
        """Count one unit's."""
        self.num += unit["num_records"] + len(unit["unreadable"])
        self.num_documents += unit["num_documents"]
        self.num_bytes += unit["bytes"]
        self.num_unreadable += len(unit["unreadable"])
        self.num_raised += num_raised(unit)

    @property
    def num_bad(self) -> int:
        return self.num_unreadable + self.num_raised

    def hopeless(self, allowed: float, share_read: float) -> bool:
        """Whether a step raises on most documents, and on more than are allowed even if all that is left were good: as
        far as the share of the input's bytes that is read foretells how many records there are."""
        allowed_in_all = allowed * self.num / max(share_read, 1e-12)
        most = self.num_raised > self.num_documents / 2
        return most and self.num_raised >= _ENOUGH_TO_STOP and self.num_raised > allowed_in_all


def num_raised(unit: Mapping[str, Any]) -> int:
    """On how many documents of a unit a step raised."""
    return sum(number for stage, rule, number, _ in unit["rejected"] if rule == error_rule(stage))


def check_bad_records(read: Sequence[Mapping[str, Any]], allowed: float) -> None:
    """TooManyBadRecordsError if more than the `allowed` share of records was bad. One is always forgiven, unless the
    share is 0 or nothing else was read: a single clipped file among a few must not stop a run."""
    bad = BadRecords.of(read)
    forgiven = 1 if allowed > 0 and bad.num_bad < bad.num else 0
    if bad.num_bad > max(allowed * bad.num, forgiven):
        raise TooManyBadRecordsError(_too_many(read, bad, allowed))


def stop_if_hopeless(read: Sequence[Mapping[str, Any]], bad: BadRecords, allowed: float, share_read: float) -> None:
    """TooManyBadRecordsError as soon as a step raises on so many documents that reading on is in vain."""
    if bad.hopeless(allowed, share_read):
        raise TooManyBadRecordsError(_too_many(read, bad, allowed))


def stop_at_first(read: Iterable[Mapping[str, Any]]) -> None:
    """StrictError if anything was raised in these units."""
    for row in faults_of(read)[:1]:
        raise StrictError(strict_message(row))


def strict_message(row: FaultRow) -> str:
    """What a strict run says at the end."""
    return f"--strict: stopped at the first record on which something raised.\n{row.story()}"


def _too_many(read: Sequence[Mapping[str, Any]], bad: BadRecords, allowed: float) -> str:
    lines = [f"{bad.num_bad} of {bad.num} records are bad, more than limits.max_bad_records = {allowed:g} allows:"]
    if bad.num_unreadable:
        lines.append(f"{bad.num_unreadable} of {bad.num} records are unreadable:")
        lines += [f"  {line}" for line in first_unreadable(read)]
    if bad.num_raised:
        lines.append(f"a step raised on {bad.num_raised} of {bad.num} records:")
    faults = faults_of(read)
    lines += [f"  {row.line()}" for row in faults[:_MOST_SHOWN]]
    if faults:
        lines += ["The first of them came through", visible_lines(faults[0].traceback)]
    mend = ["Mend or leave out these files"] if bad.num_unreadable else []
    mend += ["mend the step"] if bad.num_raised else []
    told = ", ".join(mend)
    lines.append(f"{told[:1].upper()}{told[1:]}, or raise the limit, and run into a new output folder.")
    return "\n".join(lines)


def announcement(read: Iterable[Mapping[str, Any]]) -> list[str]:
    """What a run says of its faults when all inputs are read: the commonest with its traceback, a line for others."""
    faults = faults_of(read)
    return [row.line() if place else row.story() for place, row in enumerate(faults[:_MOST_SHOWN])]


def first_unreadable(read: Sequence[Mapping[str, Any]]) -> list[str]:
    """The files with most unreadable stretches, a line each: how many, and why the first of them is."""
    worst = sorted((unit for unit in read if unit["unreadable"]), key=lambda unit: -len(unit["unreadable"]))
    return [
        visible_lines(f"{unit['file']}: {len(unit['unreadable'])}; the first at byte {unit['unreadable'][0][0]}:"
                  f" {unit['unreadable'][0][2]}")
        for unit in worst[:_MOST_SHOWN]
    ]  # fmt: skip


def why_nothing_was_kept(read: Sequence[Mapping[str, Any]], rejected: Mapping[str, Mapping[str, int]]) -> str:
    """The reason of an empty output: nothing could be read, nothing was a document, or which rules turned all down."""
    num_records, num_documents = (sum(unit[name] for unit in read) for name in ("num_records", "num_documents"))
    if not num_records:
        found = "\n  ".join(first_unreadable(read)) or "the files hold no record"
        return f"no record of {len(read):,} files could be read:\n  {found}"
    if not num_documents:
        kinds = {name: _summed([unit[name] for unit in read]) for name in ("by_type", "by_mime", "by_status")}
        shown = "\n  ".join(f"{name[3:]}: {counts}" for name, counts in kinds.items() if counts)
        return (
            f"none of the {num_records:,} records read is a document (an HTML or text page with HTTP status 200 or"
            f" none):\n  {shown}"
        )
    rules = sorted(((num, rule) for by_rule in rejected.values() for rule, num in by_rule.items()), reverse=True)
    shown = "\n  ".join(visible_lines(f"{rule}: {num:,}") for num, rule in rules[:10])
    more = f"\n  and {len(rules) - 10} more rules" if len(rules) > 10 else ""
    return f"no document is left of {num_documents:,}; they were turned down by\n  {shown}{more}"


def _summed(counts: Iterable[Mapping[str, int]]) -> str:
    total: dict[str, int] = {}
    for each in counts:
        for name, num in each.items():
            total[name] = total.get(name, 0) + num
    most = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:5]
    return visible_lines(", ".join(f"{name} {num:,}" for name, num in most))
