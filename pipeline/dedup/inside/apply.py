"""Write the clean texts without what was found repeated inside them: a phase of the run, unit by unit.

documents/<source>/part-NNNNN.parquet      the texts as they are published
work/units/<key>/{cuts,shortened}.parquet  rows of `edits` with twins; what is known of texts that were cut
work/units/<key>/shortened.json                  ShortenedResult
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lineage.ids import sort_key, text_hash
from lineage.index.output_index import part_name
from lineage.storage.folder import Folder
from lineage.store.column_names import INSIDE
from lineage.store.tables import CUTS, SHORTENED
from pipeline.dedup.inputs import locators, node_of
from pipeline.dedup.inside.flow import FoundInside
from pipeline.dedup.rows import ints
from pipeline.phases.phase import Phase, RunState, publish_result, run_phase
from pipeline.plan import Unit
from pipeline.recipe.tables import effective_dedup
from pipeline.results.rows import RowWriter, opened, publish_table, read_rows
from pipeline.results.unit_results import CleanPart, ReadResult, ShortenedResult
from stages.dedup.inside.cuts import left_of
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable

_GAP = "gap"
"""The kind of the edit that takes the text between two cuts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutJob:
    """What all units of a run share; `found` is the folder of what was found."""

    out: str
    found: str
    dedup: DedupTable


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitToCut:
    """A unit, its clean texts as its steps left them, and the files with cuts of its documents."""

    unit: Unit
    part: str
    cuts: tuple[str, ...]

    @property
    def marker(self) -> str:
        return f"{self.unit.folder}/shortened.json"


def cut_units(
    state: RunState, read_results: Sequence[ReadResult], found: FoundInside
) -> list[ShortenedResult]:
    """Publish the texts of all units, in plan order."""
    items = [
        UnitToCut(unit=unit, part=result.part.file, cuts=found.of_unit(unit.source_index, unit.file_index))
        for unit, result in zip(state.plan.units, read_results, strict=True)
    ]
    job = CutJob(out=state.out.url, found=found.folder.url, dedup=effective_dedup(state.recipe))
    return run_phase(
        state,
        Phase(
            name="cut repeats",
            operator="cut_repeats",
            kind="compare",
            task=cut_unit,
            result=ShortenedResult,
            job=job,
            units=items,
        ),
    )


def cut_unit(job: CutJob, item: UnitToCut) -> ShortenedResult:
    """Publish the texts of one unit."""
    out, unit = Folder(job.out), item.unit
    cuts = _cuts_of(Folder(job.found), item)
    texts = _Texts(job.dedup, cuts)
    with opened(out, item.part) as file:
        schema = file.schema_arrow.remove_metadata()
        with RowWriter(out, part_name("documents", unit.source, unit.file_index), schema) as writer:
            for batch in file.iter_batches(batch_size=1024):
                writer.add_table(texts.without_cuts(pa.Table.from_batches([batch])))
    publish_table(out, f"{unit.folder}/shortened.parquet", texts.shortened())
    publish_table(out, f"{unit.folder}/cuts.parquet", _edits(job.dedup.inside.method, cuts, texts.doc_ids))
    part = CleanPart(file=writer.name, num_rows=writer.num_rows, hash=writer.hash)
    num_chars = int((ints(cuts, "end") - ints(cuts, "start")).sum())
    result = ShortenedResult(
        part=part, num_documents=len(texts.doc_ids), num_cuts=len(cuts), num_chars=num_chars
    )
    return publish_result(out, item.marker, result)


def _cuts_of(found: Folder, item: UnitToCut) -> pa.Table:
    """The cuts of a unit's documents in order, with `part_row`."""
    first = node_of(item.unit.source_index, item.unit.file_index, 0)
    end = node_of(item.unit.source_index, item.unit.file_index + 1, 0)
    tables = []
    for name in item.cuts:
        rows = read_rows(found, name)
        node = ints(rows, "node")
        tables.append(rows.filter(pa.array((node >= first) & (node < end))))
    if not tables:
        return _NO_CUTS
    cuts = pa.concat_tables(tables).sort_by([("node", "ascending"), ("start", "ascending")])
    return cuts.append_column("part_row", pa.array(locators(ints(cuts, "node"))[2]))


_NO_CUTS = pa.schema([
    *((name, pa.int64()) for name in ("node", "start", "end", "place", "part_row", "twin_place")),
    ("twin_id", pa.binary(16)),
]).empty_table()  # fmt: skip


class _Texts:
    """The texts of a unit, one batch of rows after the other; `doc_ids` are those of texts that were cut, by row."""

    def __init__(self, dedup: DedupTable, cuts: pa.Table) -> None:
        self.doc_ids: dict[int, bytes] = {}
        self._signer = Signer(dedup) if dedup.near else None
        self._rows = ints(cuts, "part_row")
        self._starts, self._ends = cuts["start"].to_pylist(), cuts["end"].to_pylist()
        self._next = 0
        self._shortened: list[dict[str, object]] = []

    def without_cuts(self, table: pa.Table) -> pa.Table:
        """Rows of a part, with the texts as they are published."""
        first, self._next = self._next, self._next + table.num_rows
        begin, end = np.searchsorted(self._rows, (first, self._next))
        if begin == end:
            return table
        texts = table["text"].to_pylist()
        for row in np.unique(self._rows[begin:end]).tolist():
            low, high = np.searchsorted(self._rows, (row, row + 1))
            taken = _united(list(zip(self._starts[low:high], self._ends[low:high], strict=True)))
            texts[row - first] = left = left_of(texts[row - first], taken)
            self.doc_ids[row] = table["doc_id"][row - first].as_py()
            self._shortened.append(
                {
                    "part_row": row,
                    "num_chars": len(left),
                    "clean_hash": text_hash(left),
                    "signature": self._signer.signature(left) if self._signer else None,
                }
            )
        at = table.schema.get_field_index("text")
        return table.set_column(at, table.schema.field(at), pa.array(texts, table.schema.field(at).type))

    def shortened(self) -> pa.Table:
        """A row of SHORTENED for each text that was cut."""
        return pa.Table.from_pylist(self._shortened, schema=SHORTENED)


def _united(cuts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Cuts in order; those that touch as one."""
    found: list[tuple[int, int]] = []
    for start, end in cuts:
        begin = found.pop()[0] if found and found[-1][1] == start else start
        found.append((begin, end))
    return found


def _edits(method: str, cuts: pa.Table, doc_ids: dict[int, bytes]) -> pa.Table:
    """The rows of `edits` for cuts."""
    ids = [doc_ids[row] for row in cuts["part_row"].to_pylist()]
    between = pc.is_null(cuts["twin_id"])
    columns = {
        "k": pa.array([sort_key(doc_id) for doc_id in ids], pa.int64()),
        "doc_id": pa.array(ids, pa.binary()),
        "stage": pa.array([INSIDE] * len(ids), pa.string()),
        "kind": pc.if_else(between, _GAP, method),
        "count": pc.subtract(cuts["end"], cuts["start"]),
        "start": cuts["place"],
        "twin": cuts["twin_id"].cast(pa.binary()),
        "twin_start": cuts["twin_place"],
    }
    return pa.table([columns[name] for name in CUTS.names], schema=CUTS)
