"""Fragments of a unit: outcomes of its first steps as files, for models that work on them while reading goes
on.

work/units/<key>/<number>-<hash>.arrow            at most 256 documents, and the rejections between them, in order
work/units/<key>/<number>-<hash>.<model>.arrow    what a model answered for the documents

A fragment is named by its content too, so that what a model answered for another content is never taken for
it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import pyarrow as pa

from lineage.ids import content_hash
from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from pipeline.results.unit_results import ReadResult
from stages.document import Document, Edit, Finding, Outcome, Place, Rejection
from stages.fault import Fault
from stages.steps.model_step import Answer

MOST_DOCUMENTS: Final = 256
_MOST_OUTCOMES: Final = 2_048
_MOST_CHARS: Final = 16 << 20

_TEXT = pa.binary()
"""Text as UTF-8, in which a page's lone surrogates pass."""
_FINDING = pa.struct([
    ("stage", _TEXT), ("rule", _TEXT), ("value", pa.float64()), ("threshold", pa.float64()), ("rejected", pa.bool_()),
    ("matched", _TEXT),
])  # fmt: skip
_EDIT = pa.struct([("stage", _TEXT), ("kind", _TEXT), ("count", pa.int64())])
_SCORE = pa.struct([("name", _TEXT), ("score", pa.float64())])
_LABEL = pa.struct([("name", _TEXT), ("label", _TEXT)])
_FAULT = pa.struct([("error", _TEXT), ("where", _TEXT), ("traceback", _TEXT), ("message", _TEXT)])
_OUTCOMES: Final = pa.schema([
    ("doc_id", pa.binary()), ("source", _TEXT), ("file", _TEXT), ("offset", pa.int64()), ("length", pa.int64()),
    ("raw_hash", pa.binary()), ("num_bytes", pa.int64()), ("is_html", pa.bool_()), ("content_type", _TEXT),
    ("charset_hint", _TEXT), ("content_encoding", _TEXT), ("record_id", _TEXT), ("url", _TEXT), ("captured_at", _TEXT),
    ("truncated", _TEXT), ("metadata", _TEXT), ("charset", _TEXT), ("text", _TEXT), ("text_hash", pa.binary()),
    ("language", _TEXT), ("language_score", pa.float64()), ("scores", pa.list_(_SCORE)), ("labels", pa.list_(_LABEL)),
    ("edits", pa.list_(_EDIT)),
    ("findings", pa.list_(_FINDING)), ("rejected_by", _FINDING), ("other_findings", pa.list_(_FINDING)),
    ("fault", _FAULT),
])  # fmt: skip
_SCORES: Final = pa.schema([("score", pa.float64()), ("fault", _FAULT)])
_NESTED: Final = frozenset({
    "file", "offset", "length", "scores", "labels", "edits", "findings", "rejected_by", "other_findings", "fault",
})  # fmt: skip
_PLAIN: Final = tuple(name for name in _OUTCOMES.names if name not in _NESTED)
"""Columns that are fields of a Document under the same name."""
_FACTS: Final = b"sluice"
"""Where a file keeps facts besides its rows, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A fragment's file, relative to OUT and without `.arrow`, and how many documents, less rejections, it
    holds."""

    name: str
    num_documents: int

    @property
    def file(self) -> str:
        return f"{self.name}.arrow"

    def answers(self, model: str) -> str:
        """The file of what a model answered. Its name may hold any character that a module's or a rule's
        can."""
        return f"{self.name}.{content_hash(model.encode()).hex()[:12]}.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentsResult(JsonRecord):
    """fragments.json: what reading an input file counted before its models were asked (with no part and no
    rejections), and the fragments that hold its documents, in order."""

    read: ReadResult
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentContent:
    """The outcomes of a fragment, and the seconds by stage of the steps behind the fragment that it was made
    from."""

    outcomes: tuple[Outcome, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a model answered for the documents of a fragment, on which kind of device, and how long that
    took."""

    device: str
    seconds: float
    answers: tuple[Answer, ...]


def cut(outcomes: Iterable[Outcome]) -> Iterator[list[Outcome]]:
    """The outcomes in runs for one fragment each: a function of the outcomes alone. The last one may be empty
    of documents."""
    found: list[Outcome] = []
    num_documents = num_chars = 0
    for outcome in outcomes:
        found.append(outcome)
        num_documents += isinstance(outcome, Document)
        document = outcome if isinstance(outcome, Document) else outcome.document
        num_chars += len(document.text) + len(document.metadata or "") + len(document.url or "")
        if num_documents == MOST_DOCUMENTS or len(found) == _MOST_OUTCOMES or num_chars >= _MOST_CHARS:
            yield found
            found, num_documents, num_chars = [], 0, 0
    if found:
        yield found


def publish_fragment(out: Folder, folder: str, number: int, outcomes: Sequence[Outcome]) -> Fragment:
    """Write outcomes as fragment `number` of a unit's folder."""
    data = _encoded(FragmentContent(outcomes=tuple(outcomes)))
    name = f"{folder}/{number:05d}-{content_hash(data).hex()[:16]}"
    fragment = Fragment(name=name, num_documents=sum(isinstance(outcome, Document) for outcome in outcomes))
    out.publish(fragment.file, data)
    return fragment


def publish_named(out: Folder, fragment: Fragment, content: FragmentContent) -> None:
    """Write a fragment that is named by what it was made from."""
    out.publish(fragment.file, _encoded(content))


def read_fragment(out: Folder, fragment: Fragment) -> FragmentContent:
    """What a fragment holds."""
    table = _read(out, fragment.file)
    return FragmentContent(outcomes=tuple(_outcome(row) for row in table.to_pylist()), seconds=_facts(table))


def publish_answers(out: Folder, fragment: Fragment, model: str, answers: Answers) -> None:
    """Write what a model answered: scores, or outcomes."""
    found = answers.answers
    if any(isinstance(answer, (Document, Rejection)) for answer in found):
        table = pa.Table.from_pylist([_row(cast(Outcome, answer)) for answer in found], schema=_OUTCOMES)
    else:
        rows = [
            {"fault": _fault_row(answer)} if isinstance(answer, Fault) else {"score": answer}
            for answer in found
        ]
        table = pa.Table.from_pylist(rows, schema=_SCORES)
    facts = {"device": answers.device, "seconds": answers.seconds}
    out.publish(fragment.answers(model), _written(table, facts))


def read_answers(out: Folder, fragment: Fragment, model: str) -> Answers | None:
    """What a model answered for a fragment; None if it was not asked yet."""
    try:
        table = _read(out, fragment.answers(model))
    except FileNotFoundError:
        return None
    answers: Iterator[Answer]
    if "score" in table.column_names:
        answers = (
            row["score"] if row["fault"] is None else _fault(row["fault"]) for row in table.to_pylist()
        )
    else:
        answers = (_outcome(row) for row in table.to_pylist())
    return Answers(answers=tuple(answers), **_facts(table))


def with_answers(outcomes: Sequence[Outcome], given: Mapping[str, Answers]) -> list[Outcome]:
    """The outcomes; each document bears what the models answered for it, in the order of the documents."""
    answers = {model: iter(found.answers) for model, found in given.items()}
    return [
        replace(outcome, answers={model: next(found) for model, found in answers.items()})
        if isinstance(outcome, Document)
        else outcome
        for outcome in outcomes
    ]


def _encoded(content: FragmentContent) -> bytes:
    table = pa.Table.from_pylist([_row(outcome) for outcome in content.outcomes], schema=_OUTCOMES)
    return _written(table, content.seconds)


def _facts(table: pa.Table) -> Any:
    return json.loads(table.schema.metadata[_FACTS])


def _written(table: pa.Table, facts: Mapping[str, Any]) -> bytes:
    table = table.replace_schema_metadata({_FACTS: json.dumps(dict(facts)).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return cast(bytes, sink.getvalue().to_pybytes())


def _read(out: Folder, name: str) -> pa.Table:
    return pa.ipc.open_file(pa.BufferReader(out.read(name))).read_all()


def _row(outcome: Outcome) -> dict[str, object]:
    document = outcome if isinstance(outcome, Document) else outcome.document
    row = {name: _stored(getattr(document, name)) for name in _PLAIN}
    place = document.place
    row |= {"file": _stored(place.file), "offset": place.offset, "length": place.length}
    row["scores"] = [{"name": _stored(name), "score": score} for name, score in document.scores]
    row["labels"] = [{"name": _stored(name), "label": _stored(label)} for name, label in document.labels]
    row["edits"] = [
        {"stage": _stored(e.stage), "kind": _stored(e.kind), "count": e.count} for e in document.edits
    ]
    row["findings"] = [_finding_row(finding) for finding in document.findings]
    if isinstance(outcome, Rejection):
        row["rejected_by"] = _finding_row(outcome.finding)
        row["other_findings"] = [_finding_row(finding) for finding in outcome.findings]
        row["fault"] = None if outcome.fault is None else _fault_row(outcome.fault)
    return row


def _outcome(row: Mapping[str, Any]) -> Outcome:
    document = Document(
        **{name: _TAKEN[name](row[name]) for name in _PLAIN},
        place=Place(file=_text(row["file"]), offset=row["offset"], length=row["length"]),
        scores=tuple((_text(each["name"]), each["score"]) for each in row["scores"]),
        labels=tuple((_text(each["name"]), _text(each["label"])) for each in row["labels"]),
        edits=tuple(
            Edit(stage=_text(e["stage"]), kind=_text(e["kind"]), count=e["count"]) for e in row["edits"]
        ),
        findings=tuple(map(_finding, row["findings"])),
    )
    if row["rejected_by"] is None:
        return document
    return Rejection(
        document=document,
        finding=_finding(row["rejected_by"]),
        findings=tuple(map(_finding, row["other_findings"])),
        fault=None if row["fault"] is None else _fault(row["fault"]),
    )


def _finding_row(finding: Finding) -> dict[str, object]:
    return {
        "stage": _stored(finding.stage),
        "rule": _stored(finding.rule),
        "value": finding.value,
        "threshold": finding.threshold,
        "rejected": finding.rejected,
        "matched": _stored(finding.matched),
    }


def _finding(row: Mapping[str, Any]) -> Finding:
    return Finding(
        stage=_text(row["stage"]),
        rule=_text(row["rule"]),
        value=row["value"],
        threshold=row["threshold"],
        rejected=row["rejected"],
        matched=_text(row["matched"]),
    )


def _fault_row(fault: Fault) -> dict[str, object]:
    return {name: _stored(getattr(fault, name)) for name in ("error", "where", "traceback", "message")}


def _fault(row: Mapping[str, Any]) -> Fault:
    return Fault(**{name: _text(row[name]) for name in ("error", "where", "traceback", "message")})


def _stored(value: Any) -> Any:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _text(value: Any) -> Any:
    return value if value is None else value.decode("utf-8", "surrogatepass")


def _as_is(value: Any) -> Any:
    return value


_TAKEN: Final = {
    name: _text
    if _OUTCOMES.field(name).type == _TEXT and name not in ("doc_id", "raw_hash", "text_hash")
    else _as_is
    for name in _PLAIN
}
