"""The plan of a purge of what lies in the basket, and a purge as it is recorded: what a person decides by,
and the proof."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import pyarrow.compute as pc

from lineage.index.output_index import Index
from lineage.purge.exports import PlannedExports, plan_exports
from lineage.purge.plan import Elsewhere, PlannedRow, PurgeError, PurgeMatch, PurgePlan, plan_purge
from lineage.purge.sweeps import UnsweptCache, unswept
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.lookup import Lookup
from lineage.store.rows import DocumentRow, PurgedRow, PurgeRow
from lineage.trace.exposure import TrainingRun
from lineage.trace.tracer import one_each
from pipeline.inspect.hooks import plan_hooks
from pipeline.inspect.trace.tracing import UNREADABLE, TrainingAccount, make_tracer, training_account
from pipeline.page.notes import BasketItem
from pipeline.page.views.basket import NamedByItem, named_by
from pipeline.page.views.texts import clean_text, masked
from trainer.evidence.certificate_file import CertificateError, parse_certificate
from trainer.provenance.facts import FACTS_FILE

MOST_SHOWN: Final = 200
_FIRST_CHARS: Final = 240
_MOST_OF_ITEM: Final = 20
_MOST_KEPT_COPIES: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDocument:
    """A document that would go: what is recorded of it, and the beginning of its text without personal
    data."""

    planned: PlannedRow
    row: DocumentRow | None
    beginning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedItem:
    """What somebody has written, item `number` of all (from 1), and a document of it (ids in hex), or that there
    is none.

    `found` is the document's URL, or the item's kind where that is a host, a domain or a condition and
    `num_documents` says how many these are. `goes`: else it was purged already. `kept_copy` goes with it: what
    was kept in its place. `refused` says why nothing is found, and `near` what is most like it."""

    number: int
    written: str
    kind: str
    found: str = ""
    doc_id: str | None = None
    status: str | None = None
    num_documents: int | None = None
    goes: bool = False
    kept_copy: str | None = None
    refused: str = ""
    near: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCopy:
    """A document that nobody named and goes all the same: its text is that of a named one, here `in_place_of`
    with the similarity where the two were compared."""

    row: DocumentRow
    in_place_of: tuple[tuple[DocumentRow, float | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BasketPlan:
    """What a purge of the basket would take: `matches` are carried out one after the other, each a purge of
    its own, of the `items` that name documents. `asked` are the first of all `num_items`, of which `num_refused`
    name none. `documents` are the first of `num_documents`, and `kept_copies` the first of `num_kept_copies`;
    `by_role` counts all. `promotes`: only what is named goes, and its copies stay."""

    matches: tuple[PurgeMatch, ...]
    items: tuple[BasketItem, ...]
    asked: tuple[PlannedItem, ...]
    num_items: int
    num_refused: int
    promotes: bool
    documents: tuple[PlannedDocument, ...]
    kept_copies: tuple[KeptCopy, ...]
    num_kept_copies: int
    num_documents: int
    num_already: int
    num_tokens: int
    num_shards: int
    by_role: tuple[tuple[str, int], ...]
    elsewhere: tuple[Elsewhere, ...]
    account: TrainingAccount
    exports: PlannedExports
    caches: tuple[UnsweptCache, ...]


def matches_of(named: Sequence[NamedByItem], *, promotes: bool = False) -> list[PurgeMatch]:
    """The items as purges ask for them: ids together, URLs, hosts and domains too, and each condition alone,
    so that each is honoured by later runs for what it is."""
    matches = []
    for kind in ("doc", "url", "host", "domain"):
        values = tuple(entry.item.value for entry in named if entry.item.kind == kind)
        if values:
            matches.append(PurgeMatch(kind=kind, values=values))
    matches += [entry.match for entry in named if entry.match is not None]
    return [replace(match, promote_duplicates=promotes) for match in matches]


def plan_basket(
    out: Folder, index: Index, items: Sequence[BasketItem], *, promotes: bool = False
) -> BasketPlan:
    """Plan it; nothing is written. PurgeError for an empty basket. With `promotes` only the named copies go
    (`sluice purge --promote-duplicates`)."""
    if not items:
        raise PurgeError("nothing to plan: the basket is empty")
    hooks = plan_hooks(out)
    named = named_by(Lookup(out), items, conditions_of=out)
    known = [entry for entry in named if not entry.refused]
    plans: list[PurgePlan] = [plan_purge(out, match, hooks) for match in matches_of(known, promotes=promotes)]
    rows: dict[tuple[Any, ...], PlannedRow] = {}
    for plan in plans:
        for row in plan.rows:
            rows.setdefault((row.doc_id, row.source, row.part, row.part_row, row.warc_file), row)
    planned = sorted(rows.values(), key=lambda row: (row.role != "target", row.doc_id))
    ids = {row.doc_id for row in planned}
    placed = sorted({row.doc_id for row in planned if row.shard is not None})
    by_id = {row.doc_id: row.role for row in reversed(planned)}
    returned = {doc_id for plan in plans for doc_id in plan.returned}
    roles = Counter(by_id.values())
    # Those of earlier purges that are there again go whatever is named.
    copies = sorted(
        doc_id for doc_id, role in by_id.items() if role == "kept_copy" and doc_id not in returned
    )
    # Of very many the ones that name nothing stand first.
    shown = named if len(named) <= MOST_SHOWN else sorted(named, key=lambda entry: not entry.refused)
    return BasketPlan(
        matches=tuple(plan.match for plan in plans),
        items=tuple(entry.item for entry in known),
        asked=tuple(
            row
            for number, entry in enumerate(shown[:MOST_SHOWN], 1)
            for row in _planned_items(number, entry, by_id)
        ),
        num_items=len(named),
        num_refused=len(named) - len(known),
        promotes=promotes,
        documents=tuple(_described(out, index, planned[:MOST_SHOWN])),
        kept_copies=tuple(_kept_copies(out, copies[:_MOST_KEPT_COPIES], by_id)),
        num_kept_copies=len(copies),
        num_documents=len(ids),
        num_already=len({doc_id for plan in plans for doc_id in plan.already} - ids),
        num_tokens=sum(row.num_tokens or 0 for row in planned),
        num_shards=len({(row.shard_source, row.shard) for row in planned if row.shard is not None}),
        by_role=tuple((role, roles[role]) for role in ("target", "kept_copy", "twin") if role in roles),
        elsewhere=tuple({entry.doc_id: entry for plan in plans for entry in plan.elsewhere}.values()),
        account=training_account(out.url, placed),
        exports=plan_exports(out, index, (), changes_corpus=bool(ids)),
        caches=unswept(out, index),
    )


def _planned_items(number: int, named: NamedByItem, by_id: Mapping[bytes, str]) -> Iterator[PlannedItem]:
    """An item with each of its first documents."""
    item = named.item
    asked = PlannedItem(number=number, written=item.written or item.value, kind=item.kind)
    if not named.rows:
        found = "" if named.refused else item.kind
        yield replace(asked, found=found, num_documents=named.num, refused=named.refused, near=named.near)
    for row in named.rows[:_MOST_OF_ITEM]:
        kept_copy = row.duplicate_of if by_id.get(row.duplicate_of or b"") == "kept_copy" else None
        yield replace(
            asked,
            found=row.url or "",
            doc_id=row.doc_id.hex(),
            status=row.status,
            goes=row.doc_id in by_id,
            kept_copy=None if kept_copy is None else kept_copy.hex(),
        )


def _kept_copies(out: Folder, ids: Sequence[bytes], by_id: Mapping[bytes, str]) -> list[KeptCopy]:
    """The kept copies of these ids, each with the named documents that repeat it."""
    lookup = Lookup(out)
    copies = one_each(lookup.documents(ids))
    members = lookup.members({row.cluster_id for row in copies if row.cluster_id is not None})
    in_place = {m.doc_id: m for m in members if m.duplicate_of in by_id and by_id.get(m.doc_id) == "target"}
    rows = one_each(lookup.documents(sorted(in_place)[:MOST_SHOWN]))
    return [
        KeptCopy(
            row=copy,
            in_place_of=tuple(
                (row, in_place[row.doc_id].similarity)
                for row in rows
                if in_place[row.doc_id].duplicate_of == copy.doc_id
            ),
        )
        for copy in copies
    ]


def _described(out: Folder, index: Index, planned: Sequence[PlannedRow]) -> list[PlannedDocument]:
    rows = {row.doc_id: row for row in Lookup(out).documents(sorted({row.doc_id for row in planned}))}
    return [
        PlannedDocument(
            planned=row, row=rows.get(row.doc_id), beginning=_beginning(out, index, rows.get(row.doc_id))
        )
        for row in planned
    ]


def _beginning(out: Folder, index: Index, row: DocumentRow | None) -> str:
    text = None if row is None else clean_text(out, index, row)
    return "" if text is None or row is None else masked(text[: 4 * _FIRST_CHARS], row)[:_FIRST_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate that a training run's output holds: that the weights of a checkpoint are without these
    purges. `readings`: how often the run had read what each took, None where it does not say; `check_call`:
    how it is checked."""

    run: str
    place: str
    check_call: str
    at: str
    step: int | None
    readings: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """The certificates of training runs, and what is not known of them: a line for each that cannot be read,
    and for each output that cannot."""

    found: tuple[Certificate, ...]
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPurge:
    """A purge as it is recorded: the first of its `num_documents` with role and place."""

    row: PurgeRow
    match: dict[str, object]
    documents: tuple[PurgedRow, ...]
    num_documents: int
    by_role: tuple[tuple[str, int], ...]
    urls: dict[bytes, str]
    caches: tuple[UnsweptCache, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOnPurged:
    """What trained on the documents of a purge before it, and which runs were replayed without them."""

    account: TrainingAccount
    certificates: Certificates


def recorded_purge(out: Folder, index: Index, purge_id: str) -> RecordedPurge:
    """PurgeError where no such purge is recorded as ended."""
    row = next((row for row in Lookup(out).purges() if row.purge_id == purge_id), None)
    if row is None:
        raise PurgeError(f"{out.url} has no purge {purge_id!r} that has ended")
    purged = read_table(out, "purged")
    own = purged.filter(pc.equal(purged["purge_id"], purge_id)).sort_by("doc_id")
    columns = [field.name for field in fields(PurgedRow)]
    some = [PurgedRow(**row) for row in own.slice(0, MOST_SHOWN).select(columns).to_pylist()]
    urls = {row.doc_id: row.url or "" for row in Lookup(out).documents(sorted({row.doc_id for row in some}))}
    return RecordedPurge(
        row=row,
        match=json.loads(row.match),
        documents=tuple(some),
        num_documents=own.num_rows,
        by_role=tuple(Counter(own["role"].to_pylist()).items()),
        urls=urls,
        caches=unswept(out, index),
    )


def training_on_purged(out: Folder, purge_id: str) -> TrainingOnPurged:
    """By inverting the order of every run for every document of the purge: of a large one it takes its
    time."""
    purged = read_table(out, "purged")
    own = purged.filter(pc.and_(pc.equal(purged["purge_id"], purge_id), pc.is_valid(purged["shard"])))
    placed = sorted(set(own["doc_id"].to_pylist()))
    of_runs = [certificates_of(run) for run in make_tracer(out.url).runs()]
    return TrainingOnPurged(
        account=training_account(out.url, placed, purge_id),
        certificates=Certificates(
            found=tuple(found for each in of_runs for found in each.found if purge_id in found.readings),
            unread=tuple(line for each in of_runs for line in each.unread),
        ),
    )


def certificates_of(run: TrainingRun) -> Certificates:
    """The certificates that a run's output holds, beside each of which its page lies."""
    folder, found, unread = Folder(run.output), [], []
    try:
        names = [name for name in folder.names("certificates") if name.endswith(".json")]
        if not names and not folder.exists(FACTS_FILE):
            unread.append(f"{folder.url} holds nothing of run {run.run}: it was moved, deleted or replaced")
    except UNREADABLE as error:
        return Certificates(found=(), unread=(f"{folder.url} cannot be read: {error}",))
    for name in names:
        try:
            found.append(_certificate(run, folder.at(name), folder.read(name)))
        except (*UNREADABLE, CertificateError) as error:
            unread.append(str(error))
    return Certificates(found=tuple(found), unread=tuple(unread))


def _certificate(run: TrainingRun, place: str, data: bytes) -> Certificate:
    """CertificateError for what is none, or was changed since it was written."""
    row, is_whole = parse_certificate(data, place)
    if not is_whole:
        raise CertificateError(f"{place} was changed since it was written: its checksum does not hold")
    return Certificate(
        run=run.run,
        place=place,
        check_call=f"sluice certify --check {shlex.quote(place)} {shlex.quote(run.output)}",
        at=str(row.get("at", "")),
        step=row["checkpoint"].get("step"),
        readings={
            purge["purge_id"]: num if isinstance(num := purge.get("readings"), int) else None
            for purge in row["purges"]
        },
    )
