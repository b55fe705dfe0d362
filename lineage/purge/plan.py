"""What a purge would take: the documents that are named, those that repeat them, and where all of them
lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

import pyarrow.parquet as pq

from lineage.ids import content_hash, parse_id
from lineage.index.names import EXCERPTS_FILE
from lineage.index.output_index import Index, read_index
from lineage.index.parsed_texts import ParsedTexts, read_parsed_texts
from lineage.pages import is_public_suffix, named_host, registered_domain
from lineage.purge.returned import files_of, find_returned, finished_purges, is_as_purges_left_it, strays
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError, state
from lineage.store.lookup import Lookup
from lineage.store.purged_spans import PROMOTES, read_purged
from lineage.store.rows import CutRow, DocumentRow, shard_source
from lineage.trace.earlier import NotOpenedError
from lineage.trace.nearest import nearest

PARSED_TEXTS_KIND: Final = "parsed_texts"
"""The kind of match that takes away all texts kept after parse (run.keep_text), and no document."""

Role = Literal["target", "kept_copy", "twin"]
_ROLES: Final[tuple[Role, ...]] = ("target", "kept_copy", "twin")
"""In order of importance: a document that is several counts as the first."""


class PurgeError(ValueError):
    """The purge cannot be planned or must not begin; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeMatch:
    """How the targets were named: ids in hex for `doc` and `scan`, URLs, hosts or domains as given.
    `named_by` says what was resolved into these values, as a condition or a list; it is part of the audit
    row.

    `promote_duplicates`: these copies alone go. What repeats them stays as it is, and later runs that honour
    the purge keep these records out and not their text."""

    kind: Literal["doc", "url", "host", "domain", "scan", "parsed_texts"]
    values: tuple[str, ...]
    named_by: str | None = None
    promote_duplicates: bool = False

    def as_json(self) -> str:
        """The `match` of `purges`."""
        more: dict[str, object] = {} if self.named_by is None else {"named_by": self.named_by}
        if self.promote_duplicates:
            more[PROMOTES] = True
        return json.dumps({"kind": self.kind, "values": list(self.values)} | more, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A row of `documents` that is to be purged, and where its text and tokens lie (None where it has
    none)."""

    doc_id: bytes
    role: Role
    status: str
    source: str
    part: int | None
    part_row: int | None
    shard: int | None
    start: int | None
    num_tokens: int | None
    warc_file: str | None
    bucket: str | None

    @property
    def shard_source(self) -> str:
        """The source whose shards hold it."""
        return shard_source(self.source, self.bucket)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A document that lies in an earlier output, the first found that repeats it, and where; `out` is None
    where it was not found. It may then lie in one that is `not_opened`."""

    doc_id: bytes
    repeated_by: bytes
    out: str | None
    not_opened: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgePlan:
    """What would be purged, in order of doc_id and place; what is purged already; what lies in other outputs.

    `returned` are documents of earlier purges whose text is there again: they are among `rows`, named or not.
    `parsed_texts` are all texts kept after parse, where the match takes these away. `num_without_page`: of
    the output's documents those that no host or domain can name, where the match does so; else None.
    `num_relying` documents had text cut that stays in one of these (dedup.inside): it goes with them, and does
    not come back. Of `num_staying` of these, text was cut that stays in a document that is not purged. Both are None
    where the table `edits` cannot be read: what must go, goes all the same."""

    match: PurgeMatch
    rows: tuple[PlannedRow, ...]
    already: tuple[bytes, ...]
    elsewhere: tuple[Elsewhere, ...]
    returned: tuple[bytes, ...] = ()
    parsed_texts: ParsedTexts | None = None
    num_without_page: int | None = None
    num_relying: int | None = 0
    num_staying: int | None = 0

    @property
    def num_documents(self) -> int:
        """Different documents."""
        return len({row.doc_id for row in self.rows})

    @property
    def num_tokens(self) -> int:
        """Tokens that will be end-of-text."""
        return sum(row.num_tokens or 0 for row in self.rows)

    @property
    def shards(self) -> tuple[tuple[str, int], ...]:
        """The shards to rewrite, as (source, shard), in order."""
        return tuple(sorted({(row.shard_source, row.shard) for row in self.rows if row.shard is not None}))

    def purge_id(self, index: Index, version: int) -> str:
        """The name of this purge of this state: BLAKE3-128 (hex) of match, documents, version and content.
        `version` is that of the corpus: an index from a backup may give one that was purged from before."""
        taken = sorted({(row.doc_id.hex(), row.role) for row in self.rows})
        state = [version, index.content_fingerprint, self.match.as_json(), taken]
        return content_hash(json.dumps(state, ensure_ascii=True).encode()).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHooks:
    """What planning needs from higher layers: whether two clean texts count as near copies; which earlier
    output holds a document (NotOpenedError: none that could be opened)."""

    resembles: Callable[[str, str], bool]
    find_elsewhere: Callable[[bytes], str | None] = lambda doc_id: None


def plan_purge(out: Folder, match: PurgeMatch, hooks: PlanHooks) -> PurgePlan:
    """Plan a purge of the finished OUT; nothing is written. PurgeError if nothing is known by a given
    name."""
    if match.kind == PARSED_TEXTS_KIND:
        texts = read_parsed_texts(out)
        if texts is None or not texts.kept:
            raise PurgeError(f"{out.url} keeps no texts after parse: its run had no run.keep_text")
        left = texts if texts.removed is None else None
        return PurgePlan(match=match, rows=(), already=(), elsewhere=(), parsed_texts=left)
    planner = _Planner(out, match, hooks)
    targets = planner.targets()
    roles: dict[bytes, Role] = {row.doc_id: "target" for row in targets}
    for doc_id, role in planner.copies(targets) if not match.promote_duplicates else ():
        roles[doc_id] = min(role, roles.get(doc_id, role), key=_ROLES.index)
    already = {row.doc_id for row in planner.lookup.purged(sorted(roles))}
    returned = planner.returned(already)
    for doc_id, role in returned.items():
        roles.setdefault(doc_id, role)
    already -= returned.keys()
    if already and not match.promote_duplicates:
        # What went as a single copy is honoured without its hashes: only a purge of the text keeps that out.
        already &= read_purged(out).with_text
    rows = [
        PlannedRow(
            doc_id=row.doc_id,
            role=roles[row.doc_id],
            status=row.status,
            source=row.source,
            part=row.part,
            part_row=row.part_row,
            shard=row.shard,
            start=row.start,
            num_tokens=row.num_tokens,
            warc_file=row.warc_file,
            bucket=row.bucket,
        )
        for row in planner.lookup.documents(sorted(roles.keys() - already))
    ]
    num_relying, num_staying = planner.cuts([row.doc_id for row in rows])
    return PurgePlan(
        match=match,
        rows=tuple(rows),
        already=tuple(sorted(already)),
        elsewhere=tuple(planner.elsewhere[doc_id] for doc_id in sorted(planner.elsewhere)),
        returned=tuple(sorted(returned)),
        num_without_page=planner.lookup.num_without_page() if match.kind in ("host", "domain") else None,
        num_relying=num_relying,
        num_staying=num_staying,
    )


class _Planner:
    """The targets of a match, and what repeats them by text."""

    def __init__(self, out: Folder, match: PurgeMatch, hooks: PlanHooks) -> None:
        self.lookup = Lookup(out)
        self.elsewhere: dict[bytes, Elsewhere] = {}
        self._out, self._match, self._hooks = out, match, hooks
        self._index = read_index(out)
        self._parts = {(entry.source, entry.part): entry.file for entry in self._index.documents}
        self._texts: dict[tuple[str, int, int], str | None] = {}

    def targets(self) -> list[DocumentRow]:
        """Every row of the documents that the match names."""
        if self._match.kind in ("doc", "scan"):
            ids = {value: parse_id(value) for value in self._match.values}
            rows = self.lookup.documents(sorted(set(ids.values())))
            known = {row.doc_id for row in rows}
            self._refuse_unknown({value for value, doc_id in ids.items() if doc_id in known}, "document")
            return rows
        values = self._match.values
        if self._match.kind == "url":
            found = {url: [row.doc_id for row in rows] for url, rows in self.lookup.of_urls(values).items()}
        else:
            find = self._by_host if self._match.kind == "host" else self._by_domain
            found = {value: find(value) for value in values}
        self._refuse_unknown({value for value, ids in found.items() if ids}, self._match.kind)
        return self.lookup.documents(sorted({doc_id for ids in found.values() for doc_id in ids}))

    def _by_host(self, host: str) -> list[bytes]:
        name = named_host(host)
        return self.lookup.ids_of_host(name) if name else []

    def _by_domain(self, domain: str) -> list[bytes]:
        name = named_host(domain)
        if name is None or registered_domain(name) is None:
            if name is not None and is_public_suffix(name):
                raise PurgeError(
                    f"domain {domain!r} is a public suffix, below which others register theirs: name these,"
                    f" or take all with --where \"host = '{name}' OR host LIKE '%.{name}'\""
                )
            raise PurgeError(
                f"domain {domain!r}: expected a registered domain such as example.org, or one below it;"
                " --host takes addresses and hosts without a dot"
            )
        return self.lookup.ids_of_domain(name)

    def _refuse_unknown(self, known: set[str], what: str) -> None:
        unknown = [value for value in self._match.values if value not in known]
        if unknown:
            more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            near = ""
            if what in ("url", "document"):
                found = nearest(self.lookup, unknown[0])
                near = f"; nearest: {', '.join(found)}" if found else ""
            elif what == "host":
                near = self._beside_host(unknown[0])
            raise PurgeError(f"{self._out.url} has no {what} {unknown[0]!r}{more}: nothing was planned{near}")

    def _beside_host(self, host: str) -> str:
        """What the output has of the domain of a host that it does not have."""
        name = named_host(host)
        domain = None if name is None else registered_domain(name)
        num = 0 if domain is None else len(self.lookup.ids_of_domain(domain))
        if not num:
            return ""
        what = "1 document is" if num == 1 else f"{num:,} documents are"
        return f"; {what} of other hosts of its domain: --domain {domain} takes them all"

    def cuts(self, doc_ids: Sequence[bytes]) -> tuple[int | None, int | None]:
        """Of how many other documents text was cut that stays in one of these, and of how many of these text was
        cut that stays in others; None where `edits` is damaged."""
        try:
            relying = self.lookup.num_relying_on(doc_ids)
            own = [row for row in self.lookup.edits(doc_ids) if isinstance(row, CutRow)]
        except StoreError:
            return None, None
        return relying, len({row.doc_id for row in own if row.twin is not None and row.twin not in doc_ids})

    def copies(self, targets: Sequence[DocumentRow]) -> Iterable[tuple[bytes, Role]]:
        """Suppressed duplicates of the targets, and where a target is one itself the kept copy and its
        others. With them goes whatever has the very text of any: one that was dropped for its URL is a
        duplicate of another page."""
        named = {row.doc_id for row in targets}
        originals = [*targets, *(row for row in self._of_same_text(targets) if row.doc_id not in named)]
        repeating = list(self._in_clusters(originals))
        for row in (*originals, *repeating, *self._of_same_text(repeating)):
            yield row.doc_id, "kept_copy" if row.status == "kept" else "twin"

    def _of_same_text(self, rows: Sequence[DocumentRow]) -> list[DocumentRow]:
        """Every document whose text is that of one of these, before the steps changed it or after."""
        texts = {row.text_hash for row in rows if row.text_hash} | {
            row.clean_hash for row in rows if row.clean_hash
        }
        return [row for row in self.lookup.by_hashes(texts) if texts & {row.text_hash, row.clean_hash}]

    def _in_clusters(self, originals: Iterable[DocumentRow]) -> Iterator[DocumentRow]:
        """What repeats these, and what they and others repeat, within their clusters."""
        clustered = [row for row in originals if row.cluster_id is not None]
        members = self.lookup.members({row.cluster_id for row in clustered if row.cluster_id is not None})
        rows = {
            row.doc_id: row
            for row in self.lookup.documents(sorted({member.doc_id for member in members}))
            if row.cluster_id is not None  # else a repeated record, or what another source's steps rejected
        }
        repeating: dict[bytes, list[DocumentRow]] = {}
        for row in rows.values():
            if row.duplicate_of is not None:
                repeating.setdefault(row.duplicate_of, []).append(row)
        for original in clustered:
            yield from (row for row in repeating.get(original.doc_id, []) if self._copies(row, original))
            if (
                original.status != "duplicate"
                or original.duplicate_of is None
                or original.stage == "identity"
            ):
                continue
            kept = rows.get(original.duplicate_of)
            if (
                kept is None or kept.status != "kept"
            ):  # in an earlier output, this run may have met its record too
                self._name_elsewhere(original.duplicate_of, original.doc_id)
            others = repeating.get(original.duplicate_of, [])
            if kept is None:  # what repeats its text with this one is known without it
                yield from (row for row in others if _by_text(row, original) or self._copies(row, original))
            elif self._copies(original, kept):
                yield kept
                yield from (row for row in others if self._copies(row, kept))

    def returned(self, already: Collection[bytes]) -> dict[bytes, Role]:
        """The documents of ended purges whose text is there again, and the role in which they went.

        Files that no index names are always looked into, and all that the index names if a backup brought it;
        else only where the `already` purged documents lay, unless one is found there."""
        out, index, eot_id = self._out, self._index, self._index.tokenizer.eot_id
        if not state(out, "purged").num_rows:
            return {}
        purged = finished_purges(out)
        texts = read_parsed_texts(out)
        shown = {*index.files(), *(() if texts is None else texts.files()), EXCERPTS_FILE}
        everything = [*strays(out, index), *sorted(shown)]
        if is_as_purges_left_it(out, index):
            own = files_of(index, texts, self.lookup.documents(sorted(already)))
            found = any(True for _ in find_returned(out, eot_id, purged, own, already))
            if not found and not any(
                True for _ in find_returned(out, eot_id, purged, set(everything) - shown)
            ):
                return {}
        ids = sorted({entry.doc_id for entry in find_returned(out, eot_id, purged, everything)})
        return {row.doc_id: cast(Role, row.role) for row in self.lookup.purged(ids)}

    def _name_elsewhere(self, doc_id: bytes, repeated_by: bytes) -> None:
        if doc_id in self.elsewhere:
            return
        found: str | None = None
        not_opened: tuple[str, ...] = ()
        try:
            found = self._hooks.find_elsewhere(doc_id)
        except NotOpenedError as error:
            not_opened = tuple(error.reasons)
        self.elsewhere[doc_id] = Elsewhere(
            doc_id=doc_id, repeated_by=repeated_by, out=found, not_opened=not_opened
        )

    def _copies(self, row: DocumentRow, kept: DocumentRow) -> bool:
        """Whether `row` repeats `kept` by text; by URL alone counts only where the purge names URLs."""
        repeats = row.duplicate_of == kept.doc_id and row.similarity is not None
        if repeats or row.clean_hash == kept.clean_hash or self._match.kind == "url":
            return True
        texts = self._text(row), self._text(kept)
        return texts[0] is not None and texts[1] is not None and self._hooks.resembles(texts[0], texts[1])

    def _text(self, row: DocumentRow) -> str | None:
        if row.part is None or row.part_row is None:
            return None
        place = (row.source, row.part, row.part_row)
        if place not in self._texts:
            self._texts[place] = read_text(self._out, self._parts[row.source, row.part], row.part_row)
        return self._texts[place]


def _by_text(row: DocumentRow, other: DocumentRow) -> bool:
    """Whether two duplicates of one document both repeat its text."""
    return row.similarity is not None and other.similarity is not None


def read_text(out: Folder, part: str, part_row: int) -> str | None:
    """One text of a part (None if it was purged), reading only its row group."""
    with out.open(part) as stream:
        file = pq.ParquetFile(stream)
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if part_row < first + size:
                text: str | None = file.read_row_group(group, columns=["text"])["text"][
                    part_row - first
                ].as_py()
                return text
            first += size
    raise PurgeError(f"{out.at(part)} has no row {part_row}: run sluice verify")
