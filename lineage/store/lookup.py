"""Point lookups in the store: each touches only the files, row groups and pages that can hold the answer.

Index tables lead to a document's `k`; the bounds of `k` in the Delta log name the one file of `documents`,
and sorted rows the one row group. What a question relies on is checked first (`checked`). Questions go to
DataFusion inside deltalake: it is loaded in a twentieth of a second, and no user ever gets to write SQL for
it."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeVar

import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from lineage.ids import sort_key, text_hash
from lineage.index.checksums import DamagedFileError
from lineage.index.source_keys import sources_with_fragments
from lineage.pages import normalise_url, url_key, with_parents
from lineage.storage.folder import Folder
from lineage.store.checked import Bound, DataFiles, Needs, may_hold
from lineage.store.column_names import RIGHTS, added_to_edits
from lineage.store.delta import (
    ADVICE,
    FIRST_VERSION,
    StoreError,
    arrow_dataset,
    check_version,
    log_sums,
    open_table,
    plain_reason,
)
from lineage.store.queries.views import text_literal
from lineage.store.rows import (
    CutRow,
    DocumentRow,
    EditRow,
    FindingRow,
    ListedRow,
    MemberRow,
    PlacementRow,
    PurgedRow,
    PurgeRow,
    RunRow,
    SegmentRow,
    ShardSpan,
    SignalsRow,
    StepRow,
)

Row = TypeVar("Row")

_KEYS_A_QUESTION: Final = 16
"""DataFusion prunes by a list of up to 20 keys; a longer list would read every file."""
_KEYS_AT_MOST: Final = 2048
_SPANS_A_QUESTION: Final = 64
_REACHES: Final = (1 << 14, 1 << 20, 1 << 62)
"""How many tokens before a span to look for the placement of its first one: bounds of `start` prune row
groups, and nearly every document is shorter than the first. A longer one is found at the second or third
try."""

_ALIKE: Final = (6, 4)
"""How many bytes ids must begin alike with to be told for one another: by chance no two of a million do."""

_HASH_COLUMNS: Final = ("raw_hash", "text_hash", "clean_hash", "tokens_hash")
_SESSION: Final = {"datafusion.execution.parquet.pushdown_filters": "true"}


class Lookup:
    """Point lookups in the store of the run at `out`, as of a version of the corpus or now.

    Tables are opened once, when first asked; make a new Lookup to see later facts. Every method raises
    StoreError if the store is missing, damaged, or never had that version."""

    def __init__(self, out: Folder, version: int | None = None) -> None:
        self._out = out
        self._sums = log_sums(out)
        self._tables: dict[str, _OpenTable] = {}
        self._version = version
        if version is not None:
            check_version(out, version)

    def documents(self, doc_ids: Sequence[bytes]) -> list[DocumentRow]:
        """Every row of these ids, by (doc_id, source, warc_file, warc_offset): several where an id was met
        again."""
        wanted = set(doc_ids)
        rows = self._by_keys("documents", DocumentRow, [sort_key(doc_id) for doc_id in wanted])
        return _ordered(row for row in rows if row.doc_id in wanted)

    def by_hashes(self, digests: Collection[bytes]) -> list[DocumentRow]:
        """Documents with one of these as raw, text, clean or tokens hash. (The empty text's hash is not
        indexed.)"""
        wanted = set(digests)
        rows = self._by_keys("documents", DocumentRow, self._indexed("hash_index", map(sort_key, wanted)))
        return _ordered(row for row in rows if wanted & {getattr(row, column) for column in _HASH_COLUMNS})

    def of_url(self, url: str) -> list[DocumentRow]:
        """The documents of the page that a URL names, however it is spelt; where it has a fragment and their
        source keeps fragments apart, those with that fragment."""
        return self.of_urls([url])[url]

    def of_urls(self, urls: Collection[str]) -> dict[str, list[DocumentRow]]:
        """`of_url` of each of these."""
        return {url: self._with_url(url, self._indexed_by_url(url)) for url in urls}

    def _indexed_by_url(self, url: str) -> list[DocumentRow]:
        """Documents whose normalised URL may be that of this one."""
        return list(
            self._by_keys("documents", DocumentRow, self._indexed("hash_index", [sort_key(url_key(url))]))
        )

    def _with_url(self, url: str, rows: Iterable[DocumentRow]) -> list[DocumentRow]:
        """Those of `rows` that a URL names."""
        wanted, with_fragment = normalise_url(url), normalise_url(url, fragments=True)
        found = [row for row in rows if row.url and normalise_url(row.url) == wanted]
        if found and with_fragment != wanted:
            apart = sources_with_fragments(self._out)
            found = [
                row
                for row in found
                if row.source not in apart or normalise_url(row.url or "", fragments=True) == with_fragment
            ]
        return _ordered(found)

    def ids_of_host(self, host: str) -> list[bytes]:
        """The documents whose page has this host."""
        return [row.doc_id for row in self.host(host)]

    def ids_of_domain(self, domain: str) -> list[bytes]:
        """The documents whose page has this host, or one below it. It is a registered domain, or lies in
        one."""
        found: dict[bytes, None] = {}
        # The list of suffixes may have grown since these documents were read: what is a domain of its own now
        # may stand under the one above.
        for name in with_parents(domain):
            where = f"k = {_name_key(name)} AND domain = {text_literal(name)}"
            rows = self._select("domain_index", ("host", "doc_id"), where, _with_key(_name_key(name)))
            found |= {
                doc_id: None for host, doc_id in rows if (host == domain or host.endswith(f".{domain}"))
            }
        return list(found)

    def names_with(self, word: str, most: int) -> list[tuple[Literal["domain", "host"], str]]:
        """Recorded domains that begin with the label `word`, and other hosts that have it as a label: up to `most`
        of each, in order. The column of domains is read whole."""
        word = word.lower()
        domains: set[str] = set()
        hosts: set[str] = set()
        dataset = arrow_dataset(self._out, "domain_index", sums=self._sums)
        for batch in dataset.to_batches(columns=["domain", "host"]):
            domain, host = batch["domain"], batch["host"]
            begins = pc.starts_with(domain, word + ".")
            domains.update(pc.unique(domain.filter(begins)).to_pylist())
            with_label = pc.match_substring_regex(host, rf"(?:^|\.){re.escape(word)}\.")
            hosts.update(pc.unique(host.filter(pc.and_not(with_label, begins))).to_pylist())
        found: list[tuple[Literal["domain", "host"], str]] = [
            ("domain", name) for name in sorted(domains)[:most]
        ]
        return [*found, *(("host", name) for name in sorted(hosts)[:most])]

    def num_without_page(self) -> int:
        """How many documents that no purge took have a URL that names no page, or none."""
        purged = arrow_dataset(self._out, "purged", sums=self._sums).to_table(columns=["doc_id"])
        dataset = arrow_dataset(self._out, "documents", sums=self._sums)
        left = ~pc.field("doc_id").isin(purged["doc_id"].unique())
        return int(dataset.count_rows(filter=pc.field("host").is_null() & left))

    def ids_beside(self, doc_id: bytes, num: int) -> list[bytes]:
        """Up to `num` ids of documents that begin as this one does, those that share most first."""
        for num_bytes in _ALIKE:
            first = doc_id[:num_bytes]
            low, high = (sort_key(first.ljust(len(doc_id), fill)) for fill in (b"\0", b"\xff"))
            rows = self._select("documents", ("doc_id",), f"k >= {low} AND k <= {high}", {"k": [(low, high)]})
            found = sorted(
                {bytes(row[0]) for row in rows}, key=lambda known: (-_num_shared(known, doc_id), known)
            )
            if found:
                return found[:num]
        return []

    def by_place(self, warc_file: str, offset: int) -> list[DocumentRow]:
        """The documents read from a member of a crawl file: one, or one a source."""
        where = f"k = {_name_key(warc_file)} AND warc_file = {text_literal(warc_file)} AND warc_offset = {int(offset)}"
        found = self._select("warc_index", ("doc_k",), where, _with_key(_name_key(warc_file)))
        keys = [int(row[0]) for row in found]
        rows = self._by_keys("documents", DocumentRow, keys)
        return _ordered(row for row in rows if (row.warc_file, row.warc_offset) == (warc_file, offset))

    def in_file(self, warc_file: str, source: str) -> dict[int, int]:
        """Where the documents of a source begin in an input file: the least offset by `k`. (Of records with
        one id the first is kept.)"""
        key = _name_key(warc_file)
        where = f"k = {key} AND warc_file = {text_literal(warc_file)} AND source = {text_literal(source)}"
        offsets: dict[int, int] = {}
        for doc_k, offset in self._select("warc_index", ("doc_k", "warc_offset"), where, _with_key(key)):
            if offset is not None:
                offsets[int(doc_k)] = min(int(offset), offsets.get(int(doc_k), int(offset)))
        return offsets

    def host(self, host: str, limit: int | None = None) -> list[ListedRow]:
        """The documents of a host in order of URL, the first `limit` of them."""
        where = f"k = {_name_key(host)} AND host = {text_literal(host)}"
        where += " ORDER BY url, doc_id, source, warc_file, warc_offset"
        return list(self._rows("url_index", ListedRow, where + _limit(limit), _with_key(_name_key(host))))

    def urls_beside(self, host: str, url: str, num: int) -> list[str]:
        """Up to `num` URLs of a host on either side of where `url` would stand in their order."""
        where = f"k = {_name_key(host)} AND host = {text_literal(host)} AND url"
        needs = _with_key(_name_key(host))
        sides = (
            f"{where} < {text_literal(url)} ORDER BY url DESC",
            f"{where} >= {text_literal(url)} ORDER BY url",
        )
        found = [self._select("url_index", ("url",), side + _limit(num), needs) for side in sides]
        return sorted({str(row[0]) for rows in found for row in rows})

    def last_of_host(self, host: str) -> ListedRow:
        """The last document of a host that has some, in order of URL."""
        where = f"k = {_name_key(host)} AND host = {text_literal(host)}"
        order = "url DESC, doc_id DESC, source DESC, warc_file DESC, warc_offset DESC"
        needs = _with_key(_name_key(host))
        return next(self._rows("url_index", ListedRow, f"{where} ORDER BY {order}" + _limit(1), needs))

    def num_of_host(self, host: str) -> int:
        """How many documents a host has."""
        where = f"k = {_name_key(host)} AND host = {text_literal(host)}"
        return int(
            next(self._select("url_index", ("count(DISTINCT doc_id)",), where, _with_key(_name_key(host))))[0]
        )

    def at_spans(self, spans: Sequence[ShardSpan]) -> list[list[PlacementRow]]:
        """For each span of a shard the placements that any of its tokens belong to, in order."""
        known: dict[tuple[str, int], dict[int, PlacementRow]] = defaultdict(dict)
        left = list(dict.fromkeys(spans))
        for reach in _REACHES:
            for place in dict.fromkeys((span.source, span.shard) for span in left):
                here = [span for span in left if (span.source, span.shard) == place]
                known[place].update((row.start, row) for row in self._reaching(place, here, reach))
            left = [span for span in left if not _is_begun(span, known[span.source, span.shard].values())]
        return [_within(span, known[span.source, span.shard].values()) for span in spans]

    def at_spans_of_run(self, prefix: str, spans: Iterable[ShardSpan]) -> dict[ShardSpan, list[PlacementRow]]:
        """`at_spans` for a training run, which puts `prefix` before the names of this output's sources; spans
        of its other sources are in other outputs, and left out."""
        ours = [span for span in dict.fromkeys(spans) if span.source.startswith(prefix)]
        here = [span._replace(source=span.source.removeprefix(prefix)) for span in ours]
        return dict(zip(ours, self.at_spans(here), strict=True))

    def _reaching(
        self, place: tuple[str, int], spans: Sequence[ShardSpan], reach: int
    ) -> Iterator[PlacementRow]:
        for first in range(0, len(spans), _SPANS_A_QUESTION):
            asked = spans[first : first + _SPANS_A_QUESTION]
            wanted = " OR ".join(_overlaps(span, reach) for span in asked)
            where = f"source = {text_literal(place[0])} AND shard = {int(place[1])} AND ({wanted})"
            starts = [(int(span.start - reach), int(span.start + span.num_tokens)) for span in asked]
            needs: Needs = {
                "source": [(place[0], place[0])],
                "shard": [(place[1], place[1])],
                "start": starts,
            }
            yield from self._rows("placements", PlacementRow, where, needs)

    def signals(self, row: DocumentRow) -> SignalsRow | None:
        """What publishers say of the use of this record; None where the run recorded no signals."""
        columns = {field.name for field in self._open("documents").table.schema().fields}
        if not columns.issuperset(RIGHTS):
            return None
        found = self._of_documents("documents", SignalsRow, [row.doc_id])
        place = (row.source, row.warc_file, row.warc_offset)
        return next(each for each in found if (each.source, each.warc_file, each.warc_offset) == place)

    def edits(self, doc_ids: Sequence[bytes]) -> list[EditRow]:
        """What was changed in the texts of these documents; cuts by their place in the text."""
        found = self._of_documents("edits", CutRow if self._has_cuts() else EditRow, doc_ids)
        # The table has them by their length.
        return sorted(found, key=lambda row: (isinstance(row, CutRow) and row.start) or 0)

    def _has_cuts(self) -> bool:
        return bool(added_to_edits(field.name for field in self._open("edits").table.schema().fields))

    def num_relying_on(self, doc_ids: Sequence[bytes]) -> int:
        """How many documents had text cut that stays in one of these. Reads the whole table, where it has cuts."""
        if not doc_ids or not self._has_cuts():
            return 0
        twins = ", ".join(f"X'{doc_id.hex()}'" for doc_id in sorted(set(doc_ids)))
        return len({row.doc_id for row in self._rows("edits", CutRow, f"twin IN ({twins})")} - set(doc_ids))

    def findings(self, doc_ids: Sequence[bytes]) -> list[FindingRow]:
        """Every rule that was evaluated on these documents, where the run kept the whole ledger."""
        return self._of_documents("findings", FindingRow, doc_ids)

    def members(self, cluster_ids: Iterable[bytes]) -> list[MemberRow]:
        """The documents of these clusters, by (cluster_id, doc_id)."""
        wanted = set(cluster_ids)
        rows = self._by_keys("cluster_index", MemberRow, [sort_key(cluster_id) for cluster_id in wanted])
        return sorted(
            (row for row in rows if row.cluster_id in wanted), key=lambda row: (row.cluster_id, row.doc_id)
        )

    def purged(self, doc_ids: Sequence[bytes]) -> list[PurgedRow]:
        """Which purges took these documents, at this version."""
        rows = self._of_documents("purged", PurgedRow, doc_ids)
        if self._version is None:
            return rows
        counted = {purge.purge_id for purge in self.purges()}
        return [row for row in rows if row.purge_id in counted]

    def purges(self) -> list[PurgeRow]:
        """The purges that made this version."""
        return list(self._rows("purges", PurgeRow, "true"))

    def runs(self) -> list[RunRow]:
        """The facts on training runs, as they were committed."""
        return list(self._rows("training_runs", RunRow, "true"))

    def segments(self) -> list[SegmentRow]:
        """The facts on stretches of training, as they were committed."""
        return list(self._rows("training_segments", SegmentRow, "true"))

    def steps(self) -> list[StepRow]:
        """The stages of each source."""
        return list(self._rows("steps", StepRow, "true"))

    def _of_documents(self, table: str, shape: type[Row], doc_ids: Sequence[bytes]) -> list[Row]:
        wanted = set(doc_ids)
        rows = self._by_keys(table, shape, [sort_key(doc_id) for doc_id in wanted])
        return [row for row in rows if row.doc_id in wanted]  # type: ignore[attr-defined]

    def _by_keys(self, table: str, shape: type[Row], keys: Iterable[int]) -> Iterator[Row]:
        for group in self._by_file(table, sorted(set(keys))):
            yield from self._rows(table, shape, _one_of(group), _with_one_of(group))

    def _by_file(self, table: str, keys: list[int]) -> Iterator[list[int]]:
        """Rising keys in groups that one question each can answer without opening files for nothing: few keys
        together, many by the file that can hold them."""
        if len(keys) <= _KEYS_A_QUESTION:
            if keys:
                yield keys
            return
        firsts = [int(file.bounds["k"][0]) for file in self._open(table).files if "k" in file.bounds]
        cuts = sorted({0, *(bisect.bisect_left(keys, first) for first in firsts), len(keys)})
        for low, high in itertools.pairwise(cuts):
            for first in range(low, high, _KEYS_AT_MOST):
                yield keys[first : min(first + _KEYS_AT_MOST, high)]

    def _indexed(self, table: str, keys: Iterable[int]) -> list[int]:
        groups = self._by_file(table, sorted(set(keys)))
        return [
            int(row[0])
            for group in groups
            for row in self._select(table, ("doc_k",), _one_of(group), _with_one_of(group))
        ]

    def _rows(self, table: str, shape: type[Row], where: str, needs: Needs | None = None) -> Iterator[Row]:
        names = [field.name for field in dataclasses.fields(shape)]  # type: ignore[arg-type]
        for values in self._select(table, names, where, needs):
            yield shape(**dict(zip(names, map(_plain, values), strict=True)))

    def _open(self, table: str) -> _OpenTable:
        if table not in self._tables:
            past = None if self._version is None or table != "purges" else self._version - FIRST_VERSION
            opened = open_table(self._out, table, past, self._sums)
            self._tables[table] = _OpenTable(
                opened, _listed(opened), DataFiles(self._out.folder(f"lineage/{table}"))
            )
        return self._tables[table]

    def _select(
        self, table: str, columns: Sequence[str], where: str, needs: Needs | None
    ) -> Iterator[tuple[Any, ...]]:
        """The rows `where` says so. `needs`: ranges that hold each of them, for what is checked first (None:
        all)."""
        opened = self._open(table)
        if not opened.files:
            return
        asked = QueryBuilder(_SESSION).register("t", opened.table)
        try:
            for file in opened.files:
                if needs is None or may_hold(file.bounds, needs):
                    opened.data.check(file.path, file.num_rows, needs=needs)
            answer = asked.execute(f"SELECT {_columns(columns)} FROM t WHERE {where}").read_all()
        except DamagedFileError as error:
            raise StoreError(str(error)) from error
        except Exception as error:  # deltalake raises the bare class for files that are gone or damaged
            raise StoreError(
                f"a file of the lineage table {table!r} of {self._out.url} cannot be read: "
                f"{plain_reason(error)}. {ADVICE}"
            ) from error
        columns_of_values = [[value.as_py() for value in column] for column in answer.columns]
        yield from zip(*columns_of_values, strict=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A data file of a table as the log lists it."""

    path: str
    num_rows: int
    bounds: dict[str, tuple[Bound, Bound]]


@dataclasses.dataclass(frozen=True, slots=True)
class _OpenTable:
    """A table opened for questions."""

    table: DeltaTable
    files: list[_File]
    data: DataFiles


def _listed(table: DeltaTable) -> list[_File]:
    actions = table.get_add_actions(flatten=True)
    bounded = [name.removeprefix("min.") for name in actions.schema.names if name.startswith("min.")]
    columns = [[value.as_py() for value in actions[name]] for name in ("path", "num_records")]
    least = [[value.as_py() for value in actions[f"min.{name}"]] for name in bounded]
    greatest = [[value.as_py() for value in actions[f"max.{name}"]] for name in bounded]
    files = []
    for number, (path, num_rows) in enumerate(zip(*columns, strict=True)):
        bounds = {
            name: (low[number], high[number])
            for name, low, high in zip(bounded, least, greatest, strict=True)
            if low[number] is not None and high[number] is not None
        }
        files.append(_File(path=path, num_rows=num_rows, bounds=bounds))
    return files


def _num_shared(left: bytes, right: bytes) -> int:
    """How many hex digits two ids begin alike with."""
    pairs = zip(left.hex(), right.hex(), strict=True)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), 2 * len(left))


def _with_key(key: int) -> Needs:
    return {"k": [(key, key)]}


def _with_one_of(keys: Sequence[int]) -> Needs:
    """Few keys are pruned by one by one, many by their bounds."""
    few = len(keys) <= _KEYS_A_QUESTION
    return {"k": [(key, key) for key in keys] if few else [(keys[0], keys[-1])]}


def _columns(columns: Sequence[str]) -> str:
    return ", ".join(column if "(" in column else f'"{column}"' for column in columns)


def _one_of(keys: Sequence[int]) -> str:
    """That `k` is one of these rising keys; bounds prune files and row groups where a list is too long to."""
    return f"k >= {keys[0]} AND k <= {keys[-1]} AND k IN ({', '.join(map(str, keys))})"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _overlaps(span: ShardSpan, reach: int) -> str:
    end = int(span.start + span.num_tokens)
    return f"(start < {end} AND start > {int(span.start - reach)} AND start + num_tokens > {int(span.start)})"


def _within(span: ShardSpan, placements: Iterable[PlacementRow]) -> list[PlacementRow]:
    end = span.start + span.num_tokens
    here = (row for row in placements if row.start < end and row.start + row.num_tokens > span.start)
    return sorted(here, key=lambda row: row.start)


def _is_begun(span: ShardSpan, placements: Iterable[PlacementRow]) -> bool:
    """Whether the placement of the span's first token is among these."""
    return any(row.start <= span.start < row.start + row.num_tokens for row in placements)


def _limit(limit: int | None) -> str:
    return "" if limit is None else f" LIMIT {int(limit)}"


def _name_key(name: str) -> int:
    return sort_key(text_hash(name))


def _ordered(rows: Iterable[DocumentRow]) -> list[DocumentRow]:
    return sorted(rows, key=lambda row: (row.doc_id, row.source, row.warc_file or "", row.warc_offset or 0))
