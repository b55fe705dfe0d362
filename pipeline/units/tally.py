"""What a unit counts while it reads, and the result that it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lineage.ids import add_digests, show_digest
from lineage.purge.purged_sets import PURGED_RULE
from pipeline.inputs.files import Input
from pipeline.results.faults import FaultTally, StrictError, fault_of, strict_message
from pipeline.results.unit_results import (
    CleanPart,
    InputFile,
    RawStretch,
    ReadResult,
    RuleCount,
    SpanResult,
    UnitFile,
    UnreadableStretch,
)
from stages.document import Document, Rejection
from stages.reading.options import InputCounts, Unreadable


@dataclass(slots=True, kw_only=True)
class UnitTally:
    """What a unit has counted so far. `rejected` maps (stage, rule) to (number, digest of doc_ids). `purged`
    are the doc_ids of documents that an honoured purge rejected after parse, by their clean text.
    `counts` and `stretches` are those of the `files` that are read to their end; `unreadable`, `longest` (the
    length of the document that takes most of the file) and `extent` (where it ends so far) of the one that is
    being read; of a span they stay in `span`. With `strict` a record on which something was raised is a StrictError."""

    key: str
    source: str
    file: str
    url: str
    num_bytes: int
    counts: InputCounts = field(default_factory=InputCounts)
    files: list[InputFile] = field(default_factory=list)
    stretches: list[UnreadableStretch] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    num_documents: int = 0
    longest: int = 0
    extent: int = 0
    digest: int = 0
    rejected: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    num_survivors: int = 0
    num_without_page: int = 0
    num_without_date: int = 0
    num_chars: int = 0
    html_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    faults: FaultTally = field(default_factory=FaultTally)
    purged: set[bytes] = field(default_factory=set)
    strict: bool = False
    span: SpanResult | None = None

    @classmethod
    def resumed(cls, read: ReadResult, *, strict: bool) -> UnitTally:
        """The tally that gave this result: what reading counted, before any document was kept or rejected."""
        return cls(
            key=read.key,
            source=read.source,
            file=read.file,
            url=read.url,
            num_bytes=read.num_bytes,
            counts=InputCounts(
                num_records=read.num_records,
                by_type=dict(read.by_type),
                by_mime=dict(read.by_mime),
                by_status=dict(read.by_status),
                notes=dict(read.notes),
                odd_date=read.odd_date,
            ),
            files=list(read.files),
            stretches=list(read.unreadable),
            num_documents=read.num_documents,
            digest=int(read.digest, 16),
            html_bytes=read.html_bytes,
            seconds=dict(read.seconds),
            faults=FaultTally({row.kind: row for row in read.faults}),
            strict=strict,
        )

    def add_span(self, read: ReadResult, counts: InputCounts) -> None:
        """Count what the next span of a file gave, and in `counts` what was read of it; when all are counted,
        `count_file` follows."""
        span = read.span
        assert span is not None
        of_span = UnitTally.resumed(read, strict=False)
        of_span.counts.num_documents, of_span.counts.num_unreadable = span.num_documents, span.num_unreadable
        counts.add(of_span.counts)
        counts.end, counts.by_row = span.end, span.by_row
        self.unreadable += [Unreadable(file=self.file, **each._asdict()) for each in span.unreadable]
        self.longest, self.extent = max(self.longest, span.longest), max(self.extent, span.extent)
        self.num_documents += read.num_documents
        self.digest = add_digests((self.digest, of_span.digest))
        for count in read.rejected:
            num, digest = self.rejected.get((count.stage, count.rule), (0, 0))
            digest = add_digests((digest, int(count.digest, 16)))
            self.rejected[count.stage, count.rule] = num + count.num, digest
        self.num_survivors += read.num_survivors
        self.num_without_page += read.num_without_page
        self.num_without_date += read.num_without_date
        self.num_chars += read.num_chars
        self.html_bytes += read.html_bytes
        for name, seconds in read.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        for row in read.faults:
            self.faults.add(row)
        self.purged |= {bytes.fromhex(doc_id) for doc_id in span.purged}

    def keep_span(self, counts: InputCounts) -> None:
        """Keep what the file that this span is of needs to know."""
        self.span = SpanResult(
            began=counts.began,
            ended=counts.ended,
            end=counts.end,
            by_row=counts.by_row,
            num_documents=counts.num_documents,
            num_unreadable=counts.num_unreadable,
            num_unfolded=counts.num_unfolded,
            most_excess=counts.most_excess,
            unreadable=tuple(
                RawStretch(
                    each.offset,
                    each.length,
                    each.error,
                    each.num_records,
                    each.num_bytes,
                    each.breaks_off,
                )
                for each in self.unreadable
            ),
            longest=self.longest,
            extent=self.extent,
        )

    def count(self, document: Document) -> None:
        self.num_documents += 1
        self.longest = max(self.longest, document.place.length)
        self.extent = max(self.extent, document.place.offset + document.place.length)
        self.html_bytes += document.num_bytes
        self.digest = add_digests((self.digest, int.from_bytes(document.doc_id, "big")))

    def count_rejection(self, rejection: Rejection) -> None:
        finding, document = rejection.finding, rejection.document
        self.count_rejected(finding.stage, finding.rule, document.doc_id)
        if finding.rule == PURGED_RULE and finding.stage != "parse" and document.text_hash is not None:
            self.purged.add(document.doc_id)
        self._count_fault(rejection)

    def count_rejected(self, stage: str, rule: str, doc_id: bytes) -> None:
        number, digest = self.rejected.get((stage, rule), (0, 0))
        self.rejected[stage, rule] = number + 1, add_digests((digest, int.from_bytes(doc_id, "big")))

    def count_unreadable(self, stretch: Unreadable) -> None:
        self.unreadable.append(stretch)
        self.extent = max(self.extent, stretch.offset + stretch.length)
        self._count_fault(stretch)

    def count_file(self, found: Input, counts: InputCounts) -> None:
        """Count what was read of a file, when it is read to its end."""
        self.stretches += self._stretches(found, counts)
        self.files.append(
            InputFile(
                url=found.url,
                num_bytes=found.size,
                num_records=counts.num_records,
                num_documents=counts.num_documents,
                by_type=counts.by_type,
                by_mime=counts.by_mime,
                by_status=counts.by_status,
                notes=counts.notes,
            )
        )
        self.counts.add(counts)
        self.unreadable, self.longest, self.extent = [], 0, 0

    def _stretches(self, found: Input, counts: InputCounts) -> Iterator[UnreadableStretch]:
        """What was unreadable of a file. Where the reader cannot tell how many records a stretch holds, it is
        one if it is no longer than a document of the file, and else as many as the rest of the file has in as
        many bytes. What holds more than one is so many bytes of the file as its share of all places in it is;
        of a file that breaks off, all are."""
        end = counts.end or 0
        good = end - sum(stretch.length for stretch in self.unreadable)
        torn = next((each for each in self.unreadable if each.breaks_off), None)
        for each in self.unreadable:
            num, length, is_many = each.num_records, each.length, (each.num_records or 0) > 1
            if num is None:
                is_long = length > self.longest
                num = max(1, length * counts.num_records // good) if is_long and good > 0 else 1
                is_many = is_long and (num > 1 or good <= 0)
            num_bytes = each.num_bytes
            if num_bytes is None:
                num_bytes = length * found.size // max(end or self.extent, 1) if is_many else 0
            if torn is not None and each is not torn:
                num_bytes = 0
            yield UnreadableStretch(
                offset=each.offset,
                length=length,
                error=each.error,
                num_records=num,
                num_bytes=min(num_bytes, found.size),
                breaks_off=each is torn,
                file=found.name,
            )

    def _count_fault(self, item: Rejection | Unreadable) -> None:
        row = fault_of(item)
        if row is None:
            return
        if self.strict:
            raise StrictError(strict_message(row))
        self.faults.add(row)

    def result(self, part: CleanPart, texts: UnitFile | None) -> ReadResult:
        """What the whole unit counted, with the part and the parsed texts that it published."""
        return ReadResult(
            key=self.key,
            source=self.source,
            file=self.file,
            url=self.url,
            num_bytes=self.num_bytes,
            num_records=self.counts.num_records,
            by_type=self.counts.by_type,
            by_mime=self.counts.by_mime,
            by_status=self.counts.by_status,
            notes=self.counts.notes,
            odd_date=self.counts.odd_date,
            unreadable=tuple(self.stretches),
            num_documents=self.num_documents,
            digest=show_digest(self.digest),
            rejected=tuple(
                RuleCount(stage, rule, num, show_digest(digest))
                for (stage, rule), (num, digest) in sorted(self.rejected.items())
            ),
            num_survivors=self.num_survivors,
            num_without_page=self.num_without_page,
            num_without_date=self.num_without_date,
            num_chars=self.num_chars,
            html_bytes=self.html_bytes,
            faults=tuple(self.faults.sorted()),
            seconds={name: round(value, 6) for name, value in sorted(self.seconds.items())},
            part=part,
            texts=texts,
            files=tuple(self.files) if len(self.files) > 1 else (),
            span=self.span and replace(self.span, purged=tuple(sorted(map(bytes.hex, self.purged)))),
        )
