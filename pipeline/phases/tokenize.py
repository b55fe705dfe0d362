"""Tokenize what is kept of each unit into a sorted run.

work/units/<key>/tokens.bin, run.parquet       a unit's kept documents as tokens, in the order of their keyed hash
work/units/<key>/run.json                      TokenizeResult
work/units/<key>/rows-….{bin,parquet,json}     the same of some rows of a unit that has much text
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.index.blocks import TOKEN_BYTES
from lineage.index.output_index import INDEX_FILE, NO_TOKENIZER, TokenizerIdentity, part_name
from lineage.storage.folder import Folder
from pipeline.phases.groups import Group, unit_verdicts
from pipeline.phases.phase import Phase, RunState, UnitOfWork, publish_result, published_results, run_phase
from pipeline.phases.progress import a_second
from pipeline.plan import Unit
from pipeline.recipe.tables import PipelineRecipe
from pipeline.results.rows import publish_table, read_rows
from pipeline.results.unit_results import ReadResult, TokenizeResult
from pipeline.units.placed_tokens import EarlierPart, PlacedTokens
from stages.tokens.shards import Given, RangeReader, RunSlice, merge_runs, shared_read_ahead, write_run
from stages.tokens.tokenizer import Tokenizer, load_tokenizer

Item = TypeVar("Item", bound=UnitOfWork)

_READ_AHEAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenJob:
    """What all units of a run share; `placed`: tokens that may be copied."""

    out: str
    encoding: str
    end_of_text: str | None
    seed: int
    placed: PlacedTokens | None

    @property
    def eot_id(self) -> int:
        """The id that ends documents."""
        return kept_tokenizer(self.encoding, self.end_of_text).eot_id

    def encode_batch(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """The tokens of each text, by a tokenizer that is loaded for the first of all."""
        return kept_tokenizer(self.encoding, self.end_of_text).encode_batch(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOfGroup:
    """A unit, and the group's verdicts that concern it."""

    unit: Unit
    verdicts: str
    rows: tuple[RowRange, ...] = ()

    @property
    def marker(self) -> str:
        return f"{self.unit.folder}/run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """The rows [begin, end) of a unit's part, whose texts are more than one worker is to tokenize."""

    of: UnitOfGroup
    begin: int
    end: int

    @property
    def marker(self) -> str:
        return f"{self._name}.json"

    @property
    def tokens(self) -> str:
        """Its tokens, in the order of the keyed hash."""
        return f"{self._name}.bin"

    @property
    def run(self) -> str:
        """Its rows of a run."""
        return f"{self._name}.parquet"

    @property
    def _name(self) -> str:
        return f"{self.of.unit.folder}/rows-{self.begin}-{self.end}"


def tokenize_units(
    run: RunState, groups: Sequence[Group], read_results: Sequence[ReadResult], placed: PlacedTokens | None
) -> list[TokenizeResult]:
    """The runs of all units. Those with more text than run.unit_bytes are tokenized some rows at a time before."""
    job = TokenJob(
        out=run.out.url,
        encoding=run.recipe.tokenize.encoding,
        end_of_text=run.recipe.tokenize.end_of_text,
        seed=run.recipe.run.seed,
        placed=placed,
    )
    units = [UnitOfGroup(unit=unit, verdicts=group.verdicts) for group in groups for unit in group.units]
    if placed is None and run.recipe.run.unit_bytes:
        read = {unit.marker: result for unit, result in zip(run.plan.units, read_results, strict=True)}
        units = [
            replace(item, rows=_rows(item, read[item.unit.marker], run.recipe.run.unit_bytes))
            for item in units
        ]
    finished = published_results(run.out, [item for item in units if item.rows], TokenizeResult)
    rows = [each for item in units for each in item.rows if item.marker not in finished]
    if rows:
        run_phase(run, _phase("tokenize large files", tokenize_rows, job, rows))
    return run_phase(run, _phase("tokenize", tokenize_unit, job, units))


def _rows(item: UnitOfGroup, read: ReadResult, unit_bytes: int) -> tuple[RowRange, ...]:
    """The rows of a unit's part in so many pieces as its text has `unit_bytes`; none where that is one."""
    num = min(-(-read.num_chars // unit_bytes), read.part.num_rows)
    borders = [read.part.num_rows * number // num for number in range(num + 1)] if num > 1 else []
    return tuple(RowRange(of=item, begin=begin, end=end) for begin, end in itertools.pairwise(borders))


def _phase(
    name: str, task: Callable[[TokenJob, Item], TokenizeResult], job: TokenJob, units: Sequence[Item]
) -> Phase[TokenJob, Item, TokenizeResult]:
    return Phase(
        name=name,
        operator="tokenize",
        kind="tokenize",
        task=task,
        result=TokenizeResult,
        job=job,
        units=units,
        note=_note,
    )


def _note(results: Sequence[TokenizeResult], seconds: float) -> str:
    num, chars = sum(unit.num_tokens for unit in results), sum(unit.num_chars for unit in results)
    return f"{num:,} tokens{a_second(chars, seconds, lambda rate: f'{rate:,} characters/s')}"


@functools.lru_cache(maxsize=2)
def kept_tokenizer(encoding: str, end_of_text: str | int | None) -> Tokenizer:
    """The tokenizer that `load_tokenizer` gives, loaded once in each process."""
    return load_tokenizer(encoding, end_of_text)


def check_tokenizer(recipe: PipelineRecipe) -> None:
    """RecipeError where the tokenizer of a run that is not finished cannot be loaded."""
    table = recipe.tokenize
    if not table.off and not Folder(recipe.run.output).exists(INDEX_FILE):
        kept_tokenizer(table.encoding, table.end_of_text)


def tokenizer_of(
    recipe: PipelineRecipe, placed: PlacedTokens | None
) -> tuple[TokenizerIdentity, Sequence[str]]:
    """Which tokenizer makes the run's tokens, or made those that it copies, and lines on it. One that copies
    loads its own only for a text that is new."""
    table = recipe.tokenize
    if table.off:
        return NO_TOKENIZER, ()
    if placed is not None:
        return placed.tokenizer, placed.lines()
    found = kept_tokenizer(table.encoding, table.end_of_text)
    identity = TokenizerIdentity(
        name=found.name, hash=found.hash, vocab_size=found.vocab_size, eot_id=found.eot_id
    )
    return identity, found.lines()


def tokenize_unit(job: TokenJob, item: UnitOfGroup) -> TokenizeResult:
    """Write a unit's run, from those of its rows where they are tokenized before."""
    out, folder = Folder(job.out), item.unit.folder
    if item.rows:
        if out.exists(item.marker):  # a try before this one came so far, and may have removed what it read
            return _result_of(out, item.marker)
        result = publish_result(out, item.marker, _merge(out, item))
        for rows in item.rows:
            for name in (rows.marker, rows.tokens, rows.run):
                out.remove(name)
        return result
    kept = _kept(job, item, None)
    return publish_result(
        out, item.marker, _write(job, kept, f"{folder}/tokens.bin", f"{folder}/run.parquet")
    )


def tokenize_rows(job: TokenJob, rows: RowRange) -> TokenizeResult:
    """Write the run of some rows of a unit."""
    kept = _kept(job, rows.of, range(rows.begin, rows.end))
    return publish_result(Folder(job.out), rows.marker, _write(job, kept, rows.tokens, rows.run))


class _Kept(NamedTuple):
    """A document that stays: its row in the part, its text's length in bytes and in characters."""

    part_row: int
    doc_id: bytes
    given: str | npt.NDArray[np.uint32]
    num_bytes: int
    num_chars: int


def _kept(job: TokenJob, item: UnitOfGroup, rows: range | None) -> Iterator[_Kept]:
    """The documents of a unit's part that stay, or of some rows of it."""
    out, unit = Folder(job.out), item.unit
    verdicts = unit_verdicts(out, item.verdicts, unit.file_index)
    dropped = set(verdicts.filter(pc.not_equal(verdicts["status"], "kept"))["part_row"].to_pylist())
    placed = None if job.placed is None else EarlierPart(job.placed, unit.source, unit.file_index)
    with out.open(part_name("documents", unit.source, unit.file_index)) as opened:
        file = pq.ParquetFile(opened)
        first, groups = _groups(file, rows)
        batches = file.iter_batches(batch_size=1024, row_groups=groups, columns=["doc_id", "text"])
        texts = (
            row for batch in batches for row in zip(*(column.to_pylist() for column in batch), strict=True)
        )
        for part_row, (doc_id, text) in enumerate(texts, first):
            if part_row not in dropped and (rows is None or part_row in rows):
                tokens = None if placed is None else placed.tokens(doc_id, text)
                given = text if tokens is None else tokens
                yield _Kept(part_row, doc_id, given, len(text.encode()), len(text))


def _groups(file: pq.ParquetFile, rows: range | None) -> tuple[int, list[int]]:
    """The row groups of a file that hold some rows, all by default, and the number of the first row in them."""
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    starts = list(itertools.accumulate(sizes, initial=0))
    found = [
        group
        for group, size in enumerate(sizes)
        if rows is None or (starts[group] < rows.stop and starts[group] + size > rows.start)
    ]
    return starts[found[0]] if found else 0, found


def _merge(out: Folder, item: UnitOfGroup) -> TokenizeResult:
    """Write a unit's run from those of its rows."""
    counted = [_result_of(out, rows.marker) for rows in item.rows]
    read_ahead = shared_read_ahead(_READ_AHEAD_BYTES, len(item.rows))
    runs = [
        RunSlice(
            rows=read_rows(out, rows.run),
            tokens=RangeReader(out, rows.tokens, 0, each.num_tokens * TOKEN_BYTES, read_ahead),
        )
        for rows, each in zip(item.rows, counted, strict=True)
    ]
    with out.writing(f"{item.unit.folder}/tokens.bin") as tokens:
        run = merge_runs(runs, tokens)
    publish_table(out, f"{item.unit.folder}/run.parquet", run)
    return TokenizeResult(
        num_documents=run.num_rows,
        num_tokens=sum(each.num_tokens for each in counted),
        num_chars=sum(each.num_chars for each in counted),
    )


def _write(job: TokenJob, kept: Iterable[_Kept], tokens_name: str, run_name: str) -> TokenizeResult:
    """Write documents as a run: their tokens, and its rows."""
    out, row_of, num_bytes, num_chars = Folder(job.out), dict[bytes, int](), dict[int, int](), 0

    def given() -> Iterator[Given]:
        nonlocal num_chars
        for each in kept:
            assert each.doc_id not in row_of, "the identity stage leaves one document of each id"
            row_of[each.doc_id] = each.part_row
            num_bytes[each.part_row] = each.num_bytes
            num_chars += each.num_chars
            yield each.doc_id, each.given

    with out.writing(tokens_name) as tokens:
        run = write_run(given(), job, job.seed, tokens)
    in_order = [row_of[doc_id] for doc_id in run["doc_id"].to_pylist()]
    run = run.append_column("part_row", pa.array(in_order, pa.int64()))
    sizes = pa.array([num_bytes[row] for row in in_order], pa.int64())
    publish_table(out, run_name, run.append_column("num_bytes", sizes))
    num_tokens = int(pc.sum(run["num_tokens"]).as_py() or 0)
    return TokenizeResult(num_documents=run.num_rows, num_tokens=num_tokens, num_chars=num_chars)


def _result_of(out: Folder, marker: str) -> TokenizeResult:
    return TokenizeResult.from_json(json.loads(out.read(marker)))
