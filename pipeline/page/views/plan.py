"""The plan of a purge of what lies in the basket, and a purge as it is recorded: what a person decides by,
and the proof."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from lineage.ids import parse_id
from lineage.index.output_index import Index
from lineage.pages import named_host, registered_domain
from lineage.purge.exports import PlannedExports, plan_exports
from lineage.purge.plan import Elsewhere, PlannedRow, PurgeError, PurgeMatch, PurgePlan, plan_purge
from lineage.purge.sweeps import UnsweptCache, unswept
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.lookup import Lookup
from lineage.store.rows import DocumentRow, PurgeRow
from lineage.trace.exposure import TrainingRun
from lineage.trace.nearest import nearest
from lineage.trace.tracer import UnknownError
from pipeline.inspect.hooks import plan_hooks
from pipeline.inspect.purge_targets import targets_where
from pipeline.inspect.tracing import UNREADABLE, TrainingAccount, make_tracer, training_account
from pipeline.page.notes import BasketItem
from pipeline.page.views.texts import clean_text, masked
from trainer.provenance.facts import FACTS_FILE
from trainer.replay.certificate_file import CertificateError, parse_certificate

MOST_SHOWN: Final = 200
_FIRST_CHARS: Final = 240
_MOST_NEAREST: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDocument:
    """A document that would go: what is recorded of it, and the beginning of its text without personal
    data."""

    planned: PlannedRow
    row: DocumentRow | None
    beginning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BasketPlan:
    """What a purge of the basket would take: `matches` are carried out one after the other, each a purge of
    its own. `documents` are the first of `num_documents`; `by_role` counts all. `refused` are what nothing is
    known by, and why."""

    matches: tuple[PurgeMatch, ...]
    items: tuple[BasketItem, ...]
    refused: tuple[str, ...]
    documents: tuple[PlannedDocument, ...]
    num_documents: int
    num_already: int
    num_tokens: int
    num_shards: int
    by_role: tuple[tuple[str, int], ...]
    elsewhere: tuple[Elsewhere, ...]
    account: TrainingAccount
    exports: PlannedExports
    caches: tuple[UnsweptCache, ...]


def matches_of(out: Folder, items: Sequence[BasketItem]) -> list[PurgeMatch]:
    """The items as purges ask for them: ids together, URLs, hosts and domains too, and each condition alone,
    so that each is honoured by later runs for what it is."""
    matches = []
    for kind in ("doc", "url", "host", "domain"):
        values = tuple(item.value for item in items if item.kind == kind)
        if values:
            matches.append(PurgeMatch(kind=kind, values=values))
    return [*matches, *(targets_where(out, item.value).match for item in items if item.kind == "where")]


def plan_basket(out: Folder, index: Index, items: Sequence[BasketItem]) -> BasketPlan:
    """Plan it; nothing is written. PurgeError where nothing is left to plan."""
    hooks = plan_hooks(out)
    plans: list[PurgePlan] = []
    known, refused = _known(out, items)
    for match in matches_of(out, known):
        plans.append(plan_purge(out, match, hooks))
    if not plans:
        raise PurgeError(f"nothing to plan: {'; '.join(refused) or 'the basket is empty'}")
    rows: dict[tuple[Any, ...], PlannedRow] = {}
    for plan in plans:
        for row in plan.rows:
            rows.setdefault((row.doc_id, row.source, row.part, row.part_row, row.warc_file), row)
    planned = sorted(rows.values(), key=lambda row: (row.role != "target", row.doc_id))
    ids = {row.doc_id for row in planned}
    placed = sorted({row.doc_id for row in planned if row.shard is not None})
    roles = Counter({row.doc_id: row.role for row in reversed(planned)}.values())
    return BasketPlan(
        matches=tuple(plan.match for plan in plans),
        items=tuple(known),
        refused=tuple(refused),
        documents=tuple(_described(out, index, planned[:MOST_SHOWN])),
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


def _known(out: Folder, items: Sequence[BasketItem]) -> tuple[list[BasketItem], list[str]]:
    """The items that name documents, and for each other one why not. (A plan refuses all for one unknown
    name.)"""
    lookup = Lookup(out)
    there = {
        row.doc_id.hex() for row in lookup.documents([parse_id(i.value) for i in items if i.kind == "doc"])
    }
    of_urls = lookup.of_urls([item.value for item in items if item.kind == "url"])
    known, refused = [], []
    for item in items:
        name = named_host(item.value) if item.kind in ("host", "domain") else None
        try:
            if item.kind == "where":
                is_known = bool(targets_where(out, item.value).match.values)
            elif item.kind == "host":
                is_known = name is not None and bool(lookup.host(name, 1))
            elif item.kind == "domain":
                is_known = (
                    name is not None
                    and registered_domain(name) is not None
                    and bool(lookup.ids_of_domain(name))
                )
            else:
                is_known = item.value in there if item.kind == "doc" else bool(of_urls[item.value])
        except (RecipeError, UnknownError) as error:
            refused.append(str(error))
            continue
        if is_known:
            known.append(item)
        else:
            near = (
                nearest(lookup, item.value)
                if item.kind in ("doc", "url") and len(refused) < _MOST_NEAREST
                else []
            )
            what = {"doc": "id", "url": "URL"}.get(item.kind, item.kind)
            refused.append(
                f"no document has the {what} {item.value}" + (f"; nearest: {', '.join(near)}" if near else "")
            )
    return known, refused


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
    match: dict[str, Any]
    documents: tuple[dict[str, Any], ...]
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
    some = own.slice(0, MOST_SHOWN).to_pylist()
    urls = {
        row.doc_id: row.url or "" for row in Lookup(out).documents(sorted({row["doc_id"] for row in some}))
    }
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
