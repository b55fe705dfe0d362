"""Tokenize what is kept of each unit into a sorted run.

work/units/<key>/tokens.bin, run.parquet       a unit's kept documents as tokens, in the order of their keyed hash
work/units/<key>/run.json                      TokenizeResult
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lineage.index.output_index import INDEX_FILE, NO_TOKENIZER, TokenizerIdentity, part_name
from lineage.storage.folder import Folder
from pipeline.phases.groups import Group, unit_verdicts
from pipeline.phases.phase import Phase, publish_result
from pipeline.phases.progress import a_second
from pipeline.plan import RunPlan, Unit
from pipeline.recipe.tables import PipelineRecipe
from pipeline.results.rows import publish_table
from pipeline.results.unit_results import TokenizeResult
from pipeline.units.placed_tokens import EarlierPart, PlacedTokens
from stages.tokens.shards import Given, write_run
from stages.tokens.tokenizer import Tokenizer, load_tokenizer


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

    @property
    def marker(self) -> str:
        return f"{self.unit.folder}/run.json"


def tokenize_phase(
    plan: RunPlan, groups: Sequence[Group], placed: PlacedTokens | None
) -> Phase[TokenJob, UnitOfGroup, TokenizeResult]:
    """The tokenizing of all units."""
    return Phase(
        name="tokenize",
        operator="tokenize",
        kind="tokenize",
        task=tokenize_unit,
        result=TokenizeResult,
        job=TokenJob(
            out=plan.out.url,
            encoding=plan.recipe.tokenize.encoding,
            end_of_text=plan.recipe.tokenize.end_of_text,
            seed=plan.recipe.run.seed,
            placed=placed,
        ),
        units=[UnitOfGroup(unit=unit, verdicts=group.verdicts) for group in groups for unit in group.units],
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
    """Write a unit's run."""
    out, unit = Folder(job.out), item.unit
    folder = unit.folder
    verdicts = unit_verdicts(out, item.verdicts, unit.file_index)
    dropped = set(verdicts.filter(pc.equal(verdicts["status"], "duplicate"))["part_row"].to_pylist())
    row_of: dict[bytes, int] = {}
    num_bytes: dict[int, int] = {}
    num_chars = 0

    placed = None if job.placed is None else EarlierPart(job.placed, unit.source, unit.file_index)

    def kept() -> Iterator[Given]:
        nonlocal num_chars
        with out.open(part_name("documents", unit.source, unit.file_index)) as file:
            batches = pq.ParquetFile(file).iter_batches(batch_size=1024, columns=["doc_id", "text"])
            texts = (
                row
                for batch in batches
                for row in zip(*(column.to_pylist() for column in batch), strict=True)
            )
            for part_row, (doc_id, text) in enumerate(texts):
                if part_row not in dropped:
                    assert doc_id not in row_of, "the identity stage leaves one document of each id"
                    row_of[doc_id] = part_row
                    num_chars += len(text)
                    num_bytes[part_row] = len(text.encode())
                    tokens = None if placed is None else placed.tokens(doc_id, text)
                    yield doc_id, text if tokens is None else tokens

    with out.writing(f"{folder}/tokens.bin") as tokens:
        run = write_run(kept(), job, job.seed, tokens)
    in_order = [row_of[doc_id] for doc_id in run["doc_id"].to_pylist()]
    run = run.append_column("part_row", pa.array(in_order, pa.int64()))
    sizes = pa.array([num_bytes[row] for row in in_order], pa.int64())
    publish_table(out, f"{folder}/run.parquet", run.append_column("num_bytes", sizes))
    result = TokenizeResult(
        num_documents=run.num_rows,
        num_tokens=int(pc.sum(run["num_tokens"]).as_py() or 0),
        num_chars=num_chars,
    )
    return publish_result(out, item.marker, result)
