"""Purging: the named documents, and what repeats them, out of everything that an OUT holds of them.

    plan      lineage.purge.plan: targets, twins, kept copies, and where they lie
    intent    work/purge/: the rows, then intent.json: from here on the purge will be finished, by the next call
    mark      `purged` gains the rows: from here on they count as purged
    rewrite   shards, parts and dedup files under their next generation's names; then the new index, atomically; kept
              texts likewise
    erase     the old files (every old version of them in a versioned bucket), excerpts, cached blocks, the old report
    complete  `purges` gains its row; the report is rendered from it; checksums; work/purge/ goes
    exports   each recorded copy in another format is cleaned, or named as out of reach

Every act can be repeated, and what is done shows in what it left: so a purge killed anywhere, or cut off with
the machine's power, is finished by the next call. What an act rests on is on the disk before it: new files
before the index that names them, the index before the old files go, their removal before the row of `purges`
says so. What is taken out of a corpus is accounted for and rolled back to; it is never "unlearnt"."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.ids import sort_key
from lineage.index.checksums import CHECKSUMS_FILE, read_checksums, sum_file
from lineage.index.names import EXCERPTS_FILE, REPORT_FILE
from lineage.index.output_index import Index, PartFile, Shard, make_index, publish_index, read_index
from lineage.index.parsed_texts import FOLDER, TEXTS_FILE, parsed_text_files, read_parsed_texts
from lineage.json_record import JsonRecord
from lineage.openlineage import EventDataset, JobFacts, dataset_name, job_events
from lineage.purge.erase import erase_old_versions, refuse_if_bytes_would_stay, remove_leftovers
from lineage.purge.exports import CleanedExports, CleanExport, check_forgotten, clean_exports
from lineage.purge.parsed_texts import clean_parsed_texts, remove_parsed_texts
from lineage.purge.plan import PARSED_TEXTS_KIND, PlanHooks, PurgeError, PurgeMatch, PurgePlan, plan_purge
from lineage.purge.returned import strays
from lineage.purge.rewrite import TokenRange, drop_excerpts, rewrite_dedup, rewrite_part, rewrite_shard
from lineage.purge.sweeps import DropCached, sweep_own_caches
from lineage.storage.folder import Folder
from lineage.storage.lock import LEASE_FILE, Hold, hold
from lineage.store.checksum_update import WORK, update_checksums
from lineage.store.delta import append, corpus_version
from lineage.store.rows import shard_source
from lineage.store.tables import SCHEMAS
from lineage.store.work import PLAN, clear_work

PURGE_FOLDER: Final = f"{WORK}/purge"
_INTENT: Final = f"{PURGE_FOLDER}/intent.json"
_ROWS: Final = f"{PURGE_FOLDER}/rows.parquet"
_WRITERS: Final = 4

_PLANNED: Final = pa.schema([
    ("doc_id", pa.binary()), ("role", pa.string()), ("status", pa.string()), ("source", pa.string()),
    ("part", pa.int64()), ("part_row", pa.int64()), ("shard", pa.int64()), ("start", pa.int64()),
    ("num_tokens", pa.int64()), ("warc_file", pa.string()), ("bucket", pa.string()),
])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyHooks:
    """What applying needs from higher layers: the report of an OUT as HTML, to drop from a cache of this host
    what the new index no longer names, and to clean an export. `notify` is told what was done, a line
    each."""

    render: Callable[[Folder], bytes]
    drop_cached: DropCached
    clean_export: CleanExport
    notify: Callable[[str], None] = field(default=lambda _line: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRequest:
    """What is to be purged, by whom, and why. `forget_exports` names copies that are none of ours any
    more."""

    match: PurgeMatch
    by: str
    reason: str
    forget_exports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """What a call of `apply` did. `purge_id` is None where all was purged already (`plan.already`);
    `finished` names a purge that an earlier call had begun and this one ended first."""

    plan: PurgePlan
    purge_id: str | None
    finished: str | None
    exports: CleanedExports


@dataclass(frozen=True, slots=True, kw_only=True)
class _Intent(JsonRecord):
    """A purge that has begun. `old_files` are those that the rewritten ones replace, and those of other
    generations that a backup brought back. `version_before` is that of the index that it found, and
    `version_after` of the one that it leaves: one more, unless that index came from a backup."""

    purge_id: str
    at: str
    by: str
    reason: str
    match: str
    version_before: int
    version_after: int
    content_fingerprint_before: str
    old_files: tuple[str, ...]

    @property
    def removes_parsed_texts(self) -> bool:
        """Whether it takes away all parsed texts, and no document."""
        return bool(json.loads(self.match)["kind"] == PARSED_TEXTS_KIND)


def apply(
    out: Folder, order: PurgeRequest, plan_hooks: PlanHooks, hooks: ApplyHooks, wait_seconds: float = 0.0
) -> PurgeResult:
    """Carry a purge out, after ending one that was killed. Purging what is purged changes nothing.

    HeldError if the OUT stays held by another for `wait_seconds`; PurgeError if nothing has a given name, or
    if bytes would stay behind in a bucket's old versions: both before anything is changed."""
    with hold(out, "sluice purge", wait_seconds) as held:
        # A killed purge is finished before the new one is planned: the plan reads what it changes.
        check_forgotten(out, order.forget_exports)
        purge = _Purge(out, held, hooks)
        finished = purge.resume()
        plan = plan_purge(out, order.match, plan_hooks)
        if not plan.rows and not plan.parsed_texts:
            mine = finished is not None and finished.match == order.match.as_json()
            return PurgeResult(
                plan=plan,
                purge_id=finished.purge_id if finished is not None and mine else None,
                finished=finished.purge_id if finished else None,
                exports=purge.clean_exports(order.forget_exports),
            )
        if out.exists(PLAN):
            # The run that made this OUT was killed behind its index: its unit files hold texts, and no call needs them.
            out.sync_all(WORK)
            clear_work(out)
        _refuse_unfinished(out)
        refuse_if_bytes_would_stay(out)
        with job_events(_purge_facts(out, plan)) as facts:
            intent = purge.begin(plan, order)
            facts.tags = {**facts.tags, "purge_id": intent.purge_id}
            purge.finish(intent)
            facts.outputs = [EventDataset(url=out.url, version=read_index(out).content_fingerprint)]
        return PurgeResult(
            plan=plan,
            purge_id=intent.purge_id,
            finished=finished.purge_id if finished else None,
            exports=purge.clean_exports(order.forget_exports),
        )


def _purge_facts(out: Folder, plan: PurgePlan) -> JobFacts:
    """A purge of `out` that is about to begin. What it is asked for is not told: a URL may be what must go."""
    return JobFacts(
        kind="purge",
        name=dataset_name(out.url)[1],
        inputs=[EventDataset(url=out.url, version=read_index(out).content_fingerprint)],
        tags={"documents": str(plan.num_documents), "tokens": str(plan.num_tokens)},
    )


def clean_only(
    out: Folder, forget: Collection[str], hooks: ApplyHooks, wait_seconds: float = 0.0
) -> CleanedExports:
    """What `apply` does to exports, and nothing else but ending a purge that was killed."""
    with hold(out, "sluice purge", wait_seconds) as held:
        check_forgotten(out, forget)
        purge = _Purge(out, held, hooks)
        purge.resume()
        return purge.clean_exports(forget)


def unfinished_purge(out: Folder) -> str | None:
    """The purge_id of a purge that began and did not end, which the next `apply` ends first."""
    intent = _read_intent(out)
    return None if intent is None else intent.purge_id


def _read_intent(out: Folder) -> _Intent | None:
    try:
        return _Intent.from_json(json.loads(out.read(_INTENT)))
    except FileNotFoundError:
        return None


def _refuse_unfinished(out: Folder) -> None:
    """PurgeError if a run's unit files are still there: they hold texts, and the run would bring them
    back."""
    left = [
        name for name in out.names(WORK) if name != LEASE_FILE and not name.startswith(f"{PURGE_FOLDER}/")
    ]
    if left:
        raise PurgeError(
            f"{out.url} holds the work of a run that did not end ({left[0]}): "
            "call the same `sluice run` again, then purge"
        )


class _Purge:
    """The acts of a purge on a held OUT."""

    def __init__(self, out: Folder, held: Hold, hooks: ApplyHooks) -> None:
        self._out, self._held, self._hooks = out, held, hooks

    def resume(self) -> _Intent | None:
        """End a purge that began and did not end; what was planned without an intent is thrown away."""
        intent = _read_intent(self._out)
        if intent is None:
            self._clear_work()
            return None
        self._out.sync_all(WORK)  # the call that ended early may not have brought what it renamed to the disk
        self.finish(intent, resumed=True)
        return intent

    def begin(self, plan: PurgePlan, order: PurgeRequest) -> _Intent:
        """Record the intent: the rows first, so that an intent is never without them."""
        index = read_index(self._out)
        rows = pa.Table.from_pylist([asdict(row) for row in plan.rows], schema=_PLANNED)
        with self._out.writing(_ROWS) as file:
            pq.write_table(rows, file)
        version = corpus_version(self._out)
        old_files = dict.fromkeys([*_AffectedFiles.of(index, rows).files(), *strays(self._out, index)])
        intent = _Intent(
            purge_id=plan.purge_id(index, version),
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            by=order.by,
            reason=order.reason,
            match=plan.match.as_json(),
            version_before=index.version,
            version_after=version + 1,
            content_fingerprint_before=index.content_fingerprint,
            old_files=tuple(old_files),
        )
        self._held.check()
        self._out.publish(_INTENT, json.dumps(intent.to_json(), indent=1).encode())
        return intent

    def finish(self, intent: _Intent, *, resumed: bool = False) -> None:
        """Do all that is left to do; doing it again is harmless. What an earlier call may have rewritten
        counts as rewritten where it is `resumed`."""
        with self._out.open(_ROWS) as file:
            rows = pq.read_table(file, schema=_PLANNED)
        doc_ids = set(rows["doc_id"].to_pylist())
        self._held.check()
        # Before any byte goes: from now on trace and new runs take these documents for purged. The transaction's
        # id makes a second append do nothing.
        append(self._out, "purged", _purged_rows(intent, rows), f"purge:{intent.purge_id}")
        notify = self._hooks.notify
        notify(f"purge {intent.purge_id} has begun: {len(doc_ids):,} documents are recorded as purged")
        index = read_index(self._out)
        # Any other version: an earlier call published the new index, and the files it names are whole.
        if index.version == intent.version_before:
            index = self._rewrite(index, rows, intent.version_after)
        if intent.removes_parsed_texts:
            remove_parsed_texts(self._out, intent.purge_id)
            texts_changed = True
        else:
            texts_changed = clean_parsed_texts(self._out, rows.to_pylist())
        notify("shards and texts are written again without them, and the index names the new ones")
        # A generation that a backup left behind may have been written anew under its name.
        for name in sorted(
            set(intent.old_files) - index.files().keys() - parsed_text_files(self._out).keys()
        ):
            self._out.remove(name)
        excerpts_changed = drop_excerpts(self._out, EXCERPTS_FILE, doc_ids)
        caches_swept = sweep_own_caches(self._out, index, self._hooks.drop_cached, f"purge:{intent.purge_id}")
        notify("the old files are deleted, excerpts and caches of this host cleaned")
        # The new report lists this purge, so it is rendered after the row of `purges`. That row states that
        # every text is gone, so the old report, which shows some, is removed before it.
        self._out.remove(REPORT_FILE)
        # Temporary files of writers that died, and old versions in a bucket, hold texts too.
        remove_leftovers(self._out)
        erase_old_versions(self._out)
        self._held.check()
        append(self._out, "purges", _purge_row(intent, rows, index), f"purge:{intent.purge_id}")
        self._out.publish(REPORT_FILE, self._hooks.render(self._out))
        changed = [REPORT_FILE]
        changed += [EXCERPTS_FILE] if excerpts_changed or resumed else []
        changed += [TEXTS_FILE] if texts_changed or (resumed and self._out.exists(TEXTS_FILE)) else []
        notify("the report is rendered again")
        self._update_checksums(intent, changed, ["cache_sweeps"] if caches_swept or resumed else [])
        # The intent goes first, for good: rows without it are thrown away by the next call.
        self._out.remove(_INTENT)
        self._out.sync()
        self._clear_work()

    def _clear_work(self) -> None:
        """Remove what a purge that ended, or never began, left in work/."""
        self._out.remove_tree(PURGE_FOLDER)
        if (
            not self._out.is_remote
            and os.path.isdir(self._out.at(WORK))
            and not os.listdir(self._out.at(WORK))
        ):
            self._out.remove_tree(WORK)
        self._out.sync()

    def _update_checksums(self, intent: _Intent, changed: list[str], appended: list[str]) -> None:
        """Cover what the purge wrote: the `changed` files, its rows and those of the tables `appended` to,
        and parsed texts as texts.json names them."""
        if not self._out.exists(CHECKSUMS_FILE):
            return  # sums taken now of what was lost would vouch for any damage
        written, removed = [sum_file(self._out, name) for name in changed], set(intent.old_files)
        texts = read_parsed_texts(self._out)
        if texts is not None:
            covered = (entry.file for entry in read_checksums(self._out).files)
            removed |= {name for name in covered if name.startswith(f"{FOLDER}/") and name != TEXTS_FILE}
            written += texts.sums()
        update_checksums(self._out, written, removed, appended=("purged", "purges", *appended))

    def clean_exports(self, forget: Collection[str]) -> CleanedExports:
        """Bring every recorded copy to the corpus as it is now."""
        self._held.check()
        cleaned = clean_exports(self._out, read_index(self._out), self._hooks.clean_export, forget)
        self._hooks.notify(
            f"{len(cleaned.cleaned):,} exports cleaned, {len(cleaned.out_of_reach):,} out of reach"
        )
        return cleaned

    def _rewrite(self, index: Index, rows: pa.Table, version: int) -> Index:
        """Write what is affected under new names and publish the index that names it."""
        affected = _AffectedFiles.of(index, rows)
        doc_ids = set(rows["doc_id"].to_pylist())
        with ThreadPoolExecutor(_WRITERS) as pool:
            eot_id = index.tokenizer.eot_id
            shards = [pool.submit(rewrite_shard, self._out, s, spans, eot_id) for s, spans in affected.shards]
            parts = [
                pool.submit(rewrite_part, self._out, part, part_rows) for part, part_rows in affected.parts
            ]
            dedup = [pool.submit(rewrite_dedup, self._out, entry, doc_ids) for entry in affected.dedup]
            new = _replaced(
                index,
                [f.result() for f in shards],
                [f.result() for f in parts],
                [f.result() for f in dedup],
                version,
            )
        self._held.check()
        publish_index(self._out, new)
        return new


@dataclass(frozen=True, slots=True, kw_only=True)
class _AffectedFiles:
    """The files that hold something of the purged rows, and what of it."""

    shards: tuple[tuple[Shard, list[TokenRange]], ...]
    parts: tuple[tuple[PartFile, list[int]], ...]
    dedup: tuple[PartFile, ...]

    @classmethod
    def of(cls, index: Index, rows: pa.Table) -> _AffectedFiles:
        spans: dict[tuple[str, int], list[TokenRange]] = {}
        part_rows: dict[tuple[str, int], list[int]] = {}
        kept_in: set[tuple[str, int]] = set()
        for row in rows.to_pylist():
            if row["shard"] is not None:
                place = (shard_source(row["source"], row["bucket"]), row["shard"])
                spans.setdefault(place, []).append((row["start"], row["num_tokens"]))
            if row["part"] is not None:
                part_rows.setdefault((row["source"], row["part"]), []).append(row["part_row"])
            if row["status"] == "kept":
                kept_in.add((row["source"], row["part"]))
        return cls(
            shards=tuple((s, spans[s.source, s.shard]) for s in index.shards if (s.source, s.shard) in spans),
            parts=tuple(
                (p, part_rows[p.source, p.part]) for p in index.documents if (p.source, p.part) in part_rows
            ),
            dedup=tuple(entry for entry in index.dedup if (entry.source, entry.part) in kept_in),
        )

    def files(self) -> list[str]:
        """The names of the files that will be replaced."""
        shards = [name for shard, _ in self.shards for name in (shard.file, shard.blocks_file)]
        return [*shards, *(part.file for part, _ in self.parts), *(entry.file for entry in self.dedup)]


def _replaced(
    index: Index, shards: list[Shard], parts: list[PartFile], dedup: list[PartFile], version: int
) -> Index:
    new_shards = {(s.source, s.shard): s for s in (*index.shards, *shards)}
    new_parts = {(p.source, p.part): p for p in (*index.documents, *parts)}
    new_dedup = {(d.source, d.part): d for d in (*index.dedup, *dedup)}
    new = make_index(index.tokenizer, new_shards.values(), new_parts.values(), new_dedup.values(), version)
    assert new.order_fingerprint == index.order_fingerprint, "a purge keeps every length"
    return new


def _purged_rows(intent: _Intent, rows: pa.Table) -> pa.Table:
    """A row of `purged` for each document: its placement where it has one."""
    every = rows.to_pylist()
    # The last of a document counts.
    by_id = {row["doc_id"]: row for row in sorted(every, key=lambda row: row["shard"] is not None)}
    purged = [
        {
            "purge_id": intent.purge_id,
            "k": sort_key(doc_id),
            **{n: row[n] for n in SCHEMAS["purged"].names if n in row},
            "source": shard_source(row["source"], row["bucket"]),
        }
        for doc_id, row in sorted(by_id.items())
    ]
    return pa.Table.from_pylist(purged, schema=SCHEMAS["purged"])


def _purge_row(intent: _Intent, rows: pa.Table, index: Index) -> pa.Table:
    row = {
        "purge_id": intent.purge_id,
        "at": intent.at,
        "by": intent.by,
        "reason": intent.reason,
        "match": intent.match,
        "num_documents": len(set(rows["doc_id"].to_pylist())),
        "num_tokens": sum(n or 0 for n in rows["num_tokens"].to_pylist()),
        "content_fingerprint_before": intent.content_fingerprint_before,
        "content_fingerprint_after": index.content_fingerprint,
    }
    return pa.Table.from_pylist([row], schema=SCHEMAS["purges"])
