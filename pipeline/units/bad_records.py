"""What of a run's input is bad, records one by one and stretches that were not read: when it ends the run, and
how it is shown.

limits.max_bad_records is held against two shares, each alone: of bad records among all records, and of unread
bytes among all bytes. A stretch that may be one record is a bad record, and no unread stretch. Both are sums
over input files, so that no order of reading changes a verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pipeline.results.faults import FaultRow, FaultTally, StrictError, strict_message
from pipeline.results.run_summary import UnreadInput
from pipeline.results.unit_results import ReadResult, UnreadableStretch
from pipeline.terminal import counted, visible, visible_lines
from stages.document import error_rule
from stages.reading.options import RATIO_KEY, WINDOW_KEY

_MOST_SHOWN: Final = 5
_ENOUGH_TO_STOP: Final = 100
_READ_TO_STOP: Final = 0.5
"""The share of the input's bytes that must be read before a run stops: files of one kind may come first."""


class TooManyBadRecordsError(RuntimeError):
    """More of the input was bad than the recipe allows."""


def faults_of(read_results: Iterable[ReadResult]) -> list[FaultRow]:
    """The faults of all units (in plan order), the commonest first."""
    tally = FaultTally()
    for unit in read_results:
        for row in unit.faults:
            tally.add(row)
    return tally.sorted()


@dataclass(slots=True)
class BadRecords:
    """Bad records among those read so far: about as many as unreadable stretches hold, and documents on which
    a step raised. `most_in_a_byte` are those of the file that has most records for its bytes."""

    num: int = 0
    num_documents: int = 0
    num_bytes: int = 0
    num_unreadable: int = 0
    num_raised: int = 0
    most_in_a_byte: float = 0.0

    @classmethod
    def of(cls, read_results: Iterable[ReadResult]) -> BadRecords:
        found = cls()
        for unit in read_results:
            found.add(unit)
        return found

    def add(self, unit: ReadResult) -> None:
        """Count one unit's."""
        num_unreadable = sum(stretch.num_records for stretch in unit.unreadable)
        num = unit.num_records + num_unreadable
        self.num += num
        self.num_documents += unit.num_documents
        self.num_bytes += unit.num_bytes
        self.num_unreadable += num_unreadable
        self.num_raised += num_raised(unit)
        self.most_in_a_byte = max(self.most_in_a_byte, num / max(unit.num_bytes, 1))

    @property
    def num_bad(self) -> int:
        return self.num_unreadable + self.num_raised

    def hopeless(self, allowed: float, num_bytes: int) -> bool:
        """Whether half of the input's `num_bytes` is read, a step raises on most documents so far, and on
        more than are allowed even if what is left held good records alone, as many in a byte as any file so
        far.

        Files end in no fixed order, so a run that ends past its limit may stop early or at its end. One that
        would end within it stops early only where what is left has more records in a byte than any file read
        before."""
        if self.num_bytes < _READ_TO_STOP * num_bytes or self.num_raised < _ENOUGH_TO_STOP:
            return False
        num_left = max(num_bytes - self.num_bytes, 0) * self.most_in_a_byte
        # A quotient, not a product: 0.29 * 100 is less than 29 in floating point, and 29 / 100 is 0.29.
        return self.num_raised > self.num_documents / 2 and self.num_raised / (self.num + num_left) > allowed


def num_raised(unit: ReadResult) -> int:
    """On how many documents of a unit a step raised."""
    return sum(count.num for count in unit.rejected if count.rule == error_rule(count.stage))


def check_bad_records(read_results: Sequence[ReadResult], allowed: float) -> None:
    """TooManyBadRecordsError if more than the `allowed` share of records was bad, or of bytes was not read.
    One record is always forgiven, unless the share is 0 or nothing else was read."""
    bad, unread = BadRecords.of(read_results), unread_of(read_results)
    forgiven = 1 if allowed > 0 and bad.num_bad < bad.num else 0
    too_many = bad.num_bad > forgiven and bad.num_bad / bad.num > allowed
    if too_many or (unread is not None and unread.share > allowed):
        raise TooManyBadRecordsError(_too_many(read_results, bad, unread, allowed))


@dataclass(slots=True)
class _OfSource:
    """What was read of a source: files that are as long as they were written, their bytes and records; the
    sizes of those that break off; unread bytes and about how many records are lost in the others."""

    num_whole: int = 0
    whole_bytes: int = 0
    num_records: int = 0
    torn: list[int] = field(default_factory=list)
    unread_bytes: int = 0
    unread_records: int = 0


def unread_of(read_results: Iterable[ReadResult]) -> UnreadInput | None:
    """About how much of the input was not read; None where all was, but for single bad records.

    A file that breaks off counts as unread, as what is missing is not known: with its own bytes, or those of
    a mean file of its source that does not break off where that has more."""
    sources: dict[str, _OfSource] = defaultdict(_OfSource)
    for unit in read_results:
        found = sources[unit.source]
        torn = [stretch.num_bytes for stretch in unit.unreadable if stretch.breaks_off]
        others = [stretch for stretch in unit.unreadable if stretch.num_bytes and not stretch.breaks_off]
        found.num_whole += unit.num_files - len(torn)
        found.whole_bytes += unit.num_bytes - sum(torn)
        found.num_records += unit.num_records
        found.torn += torn
        found.unread_bytes += sum(stretch.num_bytes for stretch in others)
        found.unread_records += sum(stretch.num_records for stretch in others)
    num_bytes = num_records = total = 0
    for found in sources.values():
        mean = found.whole_bytes // max(found.num_whole, 1)
        missing = sum(max(size, mean) for size in found.torn)
        read_bytes = found.whole_bytes + sum(found.torn) - found.unread_bytes
        num_bytes += found.unread_bytes + missing
        total += found.whole_bytes + missing
        num_records += found.unread_records + missing * found.num_records // max(read_bytes, 1)
    if not num_bytes:
        return None
    num_torn = sum(len(found.torn) for found in sources.values())
    return UnreadInput(
        num_bytes=num_bytes, share=num_bytes / total, num_records=max(num_records, 1), num_broken_off=num_torn
    )


@dataclass(slots=True, kw_only=True)
class BadRecordWatch:
    """Sees the units of a run of `num_bytes` of input as they are read, and ends it as soon as reading on is
    in vain; with `strict` at the first exception."""

    allowed: float
    num_bytes: int
    strict: bool
    _read: list[ReadResult] = field(default_factory=list)
    _bad: BadRecords = field(default_factory=BadRecords)

    def see(self, unit: ReadResult) -> None:
        """TooManyBadRecordsError or StrictError."""
        self._bad.add(unit)
        self._read.append(unit)
        if self._bad.hopeless(self.allowed, self.num_bytes):
            raise TooManyBadRecordsError(
                _too_many(self._read, self._bad, unread_of(self._read), self.allowed)
            )
        if self.strict:
            stop_at_first([unit])


def stop_at_first(read_results: Iterable[ReadResult]) -> None:
    """StrictError if anything was raised in these units."""
    for row in faults_of(read_results)[:1]:
        raise StrictError(strict_message(row))


def _too_many(
    read_results: Sequence[ReadResult], bad: BadRecords, unread: UnreadInput | None, allowed: float
) -> str:
    of_all = counted(bad.num, "record is", "records are")
    lines = [f"{bad.num_bad} of {of_all} bad, more than limits.max_bad_records = {allowed:g} allows:"]
    if unread is not None and unread.share > allowed:
        lines = [f"{unread.sentence()}. That is more than limits.max_bad_records = {allowed:g} allows:"]
    if bad.num_unreadable:
        lines.append(f"{bad.num_unreadable} of {of_all} unreadable:")
        lines += [f"  {line}" for line in first_unreadable(read_results)]
    if bad.num_raised:
        lines.append(f"a step raised on {bad.num_raised} of {bad.num} records:")
    faults = faults_of(read_results)
    lines += [f"  {row.line()}" for row in faults[:_MOST_SHOWN]]
    if faults:
        lines += ["The first of them came through", visible_lines(faults[0].traceback)]
    stretches = [stretch for unit in read_results for stretch in unit.unreadable]
    too_wide = [stretch for stretch in stretches if WINDOW_KEY in stretch.error]
    mend = ["Mend or leave out these files"] if len(too_wide) < len(stretches) else []
    mend += [f"set {WINDOW_KEY} as is said there"] if too_wide else []
    mend += [f"raise {RATIO_KEY}"] if any(RATIO_KEY in stretch.error for stretch in stretches) else []
    mend += ["mend the step"] if bad.num_raised else []
    advice = ", ".join(mend)
    lines.append(
        f"{advice[:1].upper()}{advice[1:]}, or raise the limit, and make the same call again: it goes on from the"
        " files that were read and are as they were."
    )
    return "\n".join(lines)


def announcement(read_results: Sequence[ReadResult]) -> list[str]:
    """What a run says of its faults when all inputs are read: the files with most unreadable records, a line
    each; of what was raised the commonest with its traceback, a line for others."""
    faults = faults_of(read_results)
    raised = [row.line() if place else row.with_traceback() for place, row in enumerate(faults[:_MOST_SHOWN])]
    names = {(unit.source, each.file or unit.file) for unit in read_results for each in unit.unreadable}
    num_more = len(names) - _MOST_SHOWN
    more = [f"unreadable: and of {num_more:,} more files"] if num_more > 0 else []
    return [f"unreadable: {line}" for line in first_unreadable(read_results)] + more + raised


def first_unreadable(read_results: Sequence[ReadResult]) -> list[str]:
    """The files with most unreadable records, a line each: how many stretches, and why the first of them
    is."""
    by_file: dict[tuple[str, str], list[UnreadableStretch]] = defaultdict(list)
    for unit in read_results:
        for stretch in unit.unreadable:
            by_file[unit.source, stretch.file or unit.file].append(stretch)
    worst = sorted(by_file.items(), key=lambda found: _weight(found[1]), reverse=True)
    shown = []
    for (_, name), stretches in worst[:_MOST_SHOWN]:
        first = stretches[0]
        torn = "; how much is missing is not known" if any(each.breaks_off for each in stretches) else ""
        line = f"{name}: {len(stretches)}; the first at byte {first.offset}: {first.error}{torn}"
        shown.append(visible_lines(line))
    return shown


def _weight(stretches: Sequence[UnreadableStretch]) -> tuple[int, int]:
    """Which files are named first: those that break off, and those with most records in what is unreadable."""
    return sum(each.breaks_off for each in stretches), sum(each.num_records for each in stretches)


def _files_without_record(read_results: Sequence[ReadResult]) -> str:
    names = [visible(unit.file) for unit in read_results[:_MOST_SHOWN]]
    more = f" and {len(read_results) - len(names):,} more" if len(read_results) > len(names) else ""
    return f"there is no record in {', '.join(names)}{more}"


def why_nothing_was_kept(
    read_results: Sequence[ReadResult], rejected: Mapping[str, Mapping[str, int]]
) -> str:
    """The reason of an empty output: nothing could be read, nothing was a document, or which rules turned all
    down."""
    num_records = sum(unit.num_records for unit in read_results)
    num_documents = sum(unit.num_documents for unit in read_results)
    if not num_records:
        found = "\n  ".join(first_unreadable(read_results)) or _files_without_record(read_results)
        return f"no record of {counted(len(read_results), 'file')} could be read:\n  {found}"
    if not num_documents:
        kinds = {
            "type": _summed(unit.by_type for unit in read_results),
            "mime": _summed(unit.by_mime for unit in read_results),
            "status": _summed(unit.by_status for unit in read_results),
        }
        shown = "\n  ".join(f"{name}: {counts}" for name, counts in kinds.items() if counts)
        return (
            f"none of the {num_records:,} records read is a document (an HTML or text page with HTTP status"
            f" 200 or none):\n  {shown}"
        )
    rules = sorted(
        ((num, rule) for by_rule in rejected.values() for rule, num in by_rule.items()), reverse=True
    )
    shown = "\n  ".join(visible_lines(f"{rule}: {num:,}") for num, rule in rules[:10])
    more = f"\n  and {len(rules) - 10} more rules" if len(rules) > 10 else ""
    return f"no document is left of {num_documents:,}; they were rejected by\n  {shown}{more}"


def _summed(counts: Iterable[Mapping[str, int]]) -> str:
    total: dict[str, int] = {}
    for each in counts:
        for name, num in each.items():
            total[name] = total.get(name, 0) + num
    most = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:5]
    return visible_lines(", ".join(f"{name} {num:,}" for name, num in most))
