"""The kept documents of a shard as tokens: purged ones and those of other splits are left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lineage.exports.manifest import ExportedFile
from lineage.index.blocks import TOKEN_BYTES
from lineage.index.checksums import check_file
from lineage.index.output_index import Shard, generation_of
from lineage.storage.folder import Folder
from lineage.store.delta import arrow_dataset
from pipeline.export.sink import ExportSink, FileUnderWay
from pipeline.export.units import ExportJob, ExportUnit
from pipeline.results.rows import read_rows

_TOKENS_AT_ONCE: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class ShardDocuments:
    """Some documents of a shard. `rows`: doc_id and num_tokens of each, and `start`, where it begins in the
    shard; all in order of `start`. `num_tokens` includes the end-of-text id."""

    out: Folder
    shard: Shard
    rows: pa.Table

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document, shape (num_documents,)."""
        return np.asarray(self.rows["num_tokens"].to_numpy(), dtype=np.int64)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where each begins when they stand one behind another, shape (num_documents,)."""
        lengths = self.lengths
        return np.cumsum(lengths) - lengths

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def is_whole(self) -> bool:
        """Whether they are all that the shard holds: then its file is theirs as it is."""
        return self.num_tokens == self.shard.num_tokens

    def pieces(self) -> Iterator[npt.NDArray[np.uint32]]:
        """Their tokens one behind another, in arrays of at most 2^21; checked against the index before."""
        check_file(self.out, self.shard.file, self.shard.hash)
        with self.out.open(self.shard.file) as file:
            for first, end in _stretches(self.rows["start"].to_numpy(), self.lengths):
                file.seek(first * TOKEN_BYTES)
                for at in range(first, end, _TOKENS_AT_ONCE):
                    yield np.frombuffer(file.read(min(_TOKENS_AT_ONCE, end - at) * TOKEN_BYTES), dtype="<u4")

    def each(self) -> Iterator[tuple[str, npt.NDArray[np.uint32]]]:
        """Each document: its doc_id in hex, and its tokens."""
        check_file(self.out, self.shard.file, self.shard.hash)
        with self.out.open(self.shard.file) as file:
            for row in self.rows.to_pylist():
                file.seek(row["start"] * TOKEN_BYTES)
                yield (
                    row["doc_id"].hex(),
                    np.frombuffer(file.read(row["num_tokens"] * TOKEN_BYTES), dtype="<u4"),
                )


def _stretches(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Runs of documents that touch, as (first token, end)."""
    if len(starts) == 0:
        return
    ends = starts + lengths
    gaps = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    for low, high in zip([0, *gaps.tolist()], [*gaps.tolist(), len(starts)], strict=True):
        yield int(starts[low]), int(ends[high - 1])


def kept_documents(job: ExportJob, unit: ExportUnit) -> dict[str, ShardDocuments]:
    """The documents of each split of the unit's shard; a split without any is left out."""
    shard = unit.shard
    assert shard is not None
    out = Folder(job.out)
    rows = read_rows(out, shard.index_file, ["doc_id", "start", "num_tokens"], shard.index_hash)
    if generation_of(shard.file):
        rows = rows.filter(pc.invert(pc.is_in(rows["start"], _purged_starts(out, shard))))
    doc_ids = rows["doc_id"].to_pylist()
    splits = pa.array([job.request.split_of(doc_id) for doc_id in doc_ids], pa.string())
    found = {split: rows.filter(pc.equal(splits, split)) for split in job.request.splits}
    return {split: ShardDocuments(out, shard, of_split) for split, of_split in found.items() if len(of_split)}


def _purged_starts(out: Folder, shard: Shard) -> pa.Array:
    here = (pc.field("source") == shard.source) & (pc.field("shard") == shard.shard)
    starts = arrow_dataset(out, "purged").to_table(columns=["start"], filter=here)["start"]
    return pa.array(sorted(set(starts.to_pylist())), pa.int64())


def write_tokens(sink: ExportSink, job: ExportJob, name: str, split: str, documents: ShardDocuments) -> None:
    """`name`: the documents' tokens one behind another, little-endian, without a header. Where they are the
    whole shard as it is, the file is another name of the OUT's own, or a copy."""
    if job.token_bytes == TOKEN_BYTES and documents.is_whole and job.links:
        shard = documents.shard
        check_file(documents.out, shard.file, shard.hash)
        if sink.folder.publish_link(name, documents.out.at(shard.file)):
            sink.add(
                ExportedFile(
                    file=name,
                    hash=shard.hash,
                    bytes=shard.num_tokens * TOKEN_BYTES,
                    split=split,
                    num_documents=len(documents.rows),
                    num_tokens=shard.num_tokens,
                )
            )
            return
    with sink.writing(name, split) as file:
        put_tokens(file, job, documents)


def put_tokens(file: FileUnderWay, job: ExportJob, documents: ShardDocuments) -> None:
    """The documents' tokens one behind another, as uint16 or uint32, little-endian."""
    for tokens in documents.pieces():
        file.write(tokens.astype(f"<u{job.token_bytes}").tobytes())
        file.num_tokens += len(tokens)
    file.num_documents += len(documents.rows)


def documents_parquet(documents: ShardDocuments) -> pa.Table:
    """What a file of tokens holds, document by document: doc_id (hex), start and num_tokens, both in tokens
    of that file."""
    ids = pa.array([doc_id.hex() for doc_id in documents.rows["doc_id"].to_pylist()], pa.string())
    return pa.table({"doc_id": ids, "start": documents.starts, "num_tokens": documents.lengths})
