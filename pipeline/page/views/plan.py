"""The plan of a purge of what lies in the basket, and a purge as it is recorded: what a person decides by,
and the proof."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
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
from pipeline.inspect.tracing import UNREADABLE, exposures_of, make_tracer
from pipeline.page.notes import BasketItem
from pipeline.page.views.texts import clean_text, masked

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
    exposures: tuple[dict[str, Any], ...]
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
        exposures=tuple(exposures_of(out.url, placed)),
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
    purges."""

    run: str
    place: str
    at: str
    step: int | None
    purge_ids: tuple[str, ...]


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

    exposures: tuple[dict[str, Any], ...]
    certificates: tuple[Certificate, ...]


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
    return TrainingOnPurged(
        exposures=tuple(exposures_of(out.url, placed, purge_id)),
        certificates=tuple(
            certificate
            for run in make_tracer(out.url).runs()
            for certificate in certificates_of(run)
            if purge_id in certificate.purge_ids
        ),
    )


def certificates_of(run: TrainingRun) -> list[Certificate]:
    """The certificates that a run's output holds, as far as it can be read."""
    folder, found = Folder(run.output), []
    try:
        for name in folder.names("certificates"):
            row = json.loads(folder.read(name))
            purge_ids = tuple(purge["purge_id"] for purge in row["purges"])
            step = row["checkpoint"].get("step")
            found.append(
                Certificate(
                    run=run.run, place=folder.at(name), at=row.get("at", ""), step=step, purge_ids=purge_ids
                )
            )
    except UNREADABLE:
        return found
    return found
