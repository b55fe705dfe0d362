"""The formats: which module writes each, and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.exports.manifest import ExportedFile
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.export.formats import hf, jsonl, litdata, llmc, mds, megatron, nanochat, olmo, parquet, warc
from pipeline.export.request import ExportRequest
from pipeline.export.sink import ExportSink
from pipeline.export.units import ExportJob, ExportUnit
from stages.tokens.end_of_text import MAX_IDS

_INT32: Final = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """`write` writes a unit's files; `index_files` gives what is written once at the end, by name, from all
    files in order of name. `check` raises before anything is written where an OUT cannot be exported so.
    `reads`: "texts", "tokens" or, where the request says which, "either". `has_splits`: whether it takes
    --split. `to_load`: how whoever reads the copy, at `{place}`, names it, a line that is printed; empty
    where any reader of such files does. `max_ids`: the vocabulary that its integers hold."""

    reads: str
    write: Callable[[ExportJob, ExportUnit, ExportSink], None]
    index_files: Callable[[ExportJob, Sequence[ExportedFile]], Mapping[str, bytes]] = lambda job, files: {}
    has_splits: bool = True
    check: Callable[[Folder, ExportRequest], None] = lambda out, request: None
    to_load: str = ""
    max_ids: int = MAX_IDS


FORMATS: Final[dict[str, Format]] = {
    "jsonl": Format(reads="texts", write=jsonl.write),
    "parquet": Format(reads="texts", write=parquet.write),
    "hf": Format(
        reads="texts",
        write=hf.write,
        index_files=hf.index_files,
        to_load='Datasets: load_dataset("{place}"), a column dump for the source.',
    ),
    "nanochat": Format(reads="texts", write=nanochat.write, has_splits=False),
    "mds": Format(reads="either", write=mds.write, index_files=mds.index_files),
    "litdata": Format(reads="tokens", write=litdata.write, index_files=litdata.index_files, max_ids=_INT32),
    "megatron": Format(
        reads="tokens",
        write=megatron.write,
        max_ids=_INT32,
        to_load="Megatron-LM: --data-path takes a file's path below {place} without its .bin.",
    ),
    "olmo": Format(reads="tokens", write=olmo.write),
    "llmc": Format(reads="tokens", write=llmc.write),
    "warc": Format(reads="texts", write=warc.write, check=warc.check),
}

INDEX_NAMES: Final = ("README.md", "index.json")
"""What `index_files` may write, in whatever folder."""


def reads_tokens(request: ExportRequest) -> bool:
    """Whether the export is made of shards, and not of texts."""
    reads = FORMATS[request.format].reads
    return reads == "tokens" or (reads == "either" and request.tokens)


def check_request(request: ExportRequest, vocab_size: int) -> None:
    """RecipeError where the request cannot be met, with a vocabulary of so many ids."""
    if request.format not in FORMATS:
        raise RecipeError(f"--format {request.format}: expected one of {', '.join(FORMATS)}")
    wanted = FORMATS[request.format]
    if request.split and not wanted.has_splits:
        raise RecipeError(f"--split: {request.format} has a split of its own: leave the option out")
    if request.tokens and wanted.reads == "texts":
        raise RecipeError(
            f"--tokens: {request.format} holds texts only: use mds, megatron, olmo, llmc or litdata"
        )
    if request.dtype != "auto" and not reads_tokens(request):
        raise RecipeError(
            f"--dtype: {request.format} holds texts here, which have none: leave the option out"
        )
    if vocab_size > wanted.max_ids:
        raise RecipeError(
            f"--format {request.format}: it holds tokens as int32, below 2^31, and the tokenizer has"
            f" {vocab_size:,} ids: use mds, olmo or llmc"
        )
    if request.dtype == "uint16" and vocab_size > 1 << 16:
        raise RecipeError(
            f"--dtype uint16: the tokenizer has {vocab_size:,} ids, and uint16 holds 65,536: use --dtype uint32"
        )
