"""Verify, where it is asked for: each text gives the tokens that its shard holds, and they give the text
back.

A text is encoded again and its tokens' hash compared with the one that `documents` has; parts 2 and 4 compare
the same hash with the shard's own tokens. So a shard is read here only to say where it differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3

from lineage.ids import tokens_hash
from lineage.index.blocks import TOKEN_BYTES
from lineage.index.output_index import Index, PartFile
from lineage.storage.folder import Folder
from lineage.store.delta import open_table, state
from lineage.store.purged_spans import PurgedSpans
from lineage.store.rows import shard_source
from lineage.store.shuffle import Shuffle
from lineage.store.tables import SCHEMAS, conform
from lineage.store.write import num_buckets
from lineage.verify.problems import Problem, guarded
from lineage.verify.rows import TokenizedDocument, rows_of

Tokens = npt.NDArray[np.uint32]

_ROWS: Final = pa.schema([SCHEMAS["documents"].field(name) for name in TokenizedDocument._fields])
_BATCH: Final = 65_536
_TEXTS: Final = 1024
"""Rows of a part that are read at a time."""

_ENCODE_CHARS: Final = 4 << 20
"""Characters encoded at once."""

_SAMPLE_KEY: Final = blake3(b"sluice retokenize").digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retokenize:
    """What it takes: the tokenizer that made the shards, as functions, and the share of documents to look at.

    `encode_batch` gives the tokens of texts without end-of-text; `decode` the text of tokens; `keeps` whether
    the tokens of a text are sure to give it back (a tokenizer that normalises texts may not). `progress` is
    told of each number of documents that are done."""

    encode_batch: Callable[[Sequence[str]], list[Tokens]]
    decode: Callable[[Tokens], str]
    keeps: Callable[[str], bool]
    share: float = 1.0
    progress: Callable[[int], None] = lambda num: None


@dataclass(slots=True)
class RetokenizeCounts:
    """How many documents were looked at, and of those that do not come back as they were, though nothing is
    wrong, how many there are and the first."""

    num: int = 0
    num_changed: int = 0
    first_changed: bytes | None = None

    def notes(self) -> Iterator[Problem]:
        """What is worth reading and no failure."""
        if self.first_changed is not None:
            yield Problem(
                "retokenize.lossy",
                f"document {self.first_changed.hex()}",
                f"this and {self.num_changed - 1:,} more of {self.num:,} documents do not come back from their tokens"
                " as they were: the tokenizer normalises texts, or has no token for some of their characters",
            )


def is_sampled(doc_id: bytes, share: float) -> bool:
    """Whether a document is among this share of all: by the BLAKE3 of its id, keyed with that of `sluice
    retokenize`. So the same documents are, whenever and wherever it is asked."""
    return int.from_bytes(blake3(doc_id, key=_SAMPLE_KEY).digest(length=8), "big") < share * 2**64


def check_retokenized(
    out: Folder, index: Index, purged: PurgedSpans, with_: Retokenize, found: RetokenizeCounts
) -> Iterator[Problem]:
    """Every kept document that is not purged, or the share of them; `found` is filled on the way."""
    places = {(part.source, part.part): at for at, part in enumerate(index.documents)}
    comparison = _Comparison(out, index, with_, found)
    buckets = min(num_buckets(state(out, "documents").num_rows), max(1, len(places)))
    with Shuffle(buckets) as shuffle:
        yield from guarded(
            "table.unreadable", "lineage/documents", _shuffle(out, places, purged, with_.share, shuffle)
        )
        for bucket in range(buckets):
            wanted = _by_part(shuffle.read("kept", bucket, _ROWS))
            for key in sorted(wanted):
                part = index.documents[places[key]]
                yield from guarded("documents.unreadable", part.file, comparison.of_part(part, wanted[key]))


def _shuffle(
    out: Folder, places: Mapping[tuple[str, int], int], purged: PurgedSpans, share: float, shuffle: Shuffle
) -> Iterator[Problem]:
    """Put the rows to look at under the bucket of their part: neighbouring parts share one."""
    num = shuffle.num_buckets("kept")
    kept = pc.field("status") == "kept"
    documents = open_table(out, "documents").to_pyarrow_dataset()
    for batch in documents.to_batches(_ROWS.names, filter=kept, batch_size=_BATCH):
        rows = conform(pa.Table.from_batches([batch]), _ROWS)
        ids, parts = (
            rows["doc_id"].to_pylist(),
            zip(rows["source"].to_pylist(), rows["part"].to_pylist(), strict=True),
        )
        at = np.array(
            [places.get(part, -1) for part in parts], dtype=np.int64
        )  # one without a part is named by part 4
        taken = [doc_id not in purged.doc_ids and is_sampled(doc_id, share) for doc_id in ids]
        of_row = np.where(np.array(taken, dtype=np.bool_) & (at >= 0), at * num // max(1, len(places)), -1)
        for bucket in np.unique(of_row[of_row >= 0]).tolist():
            shuffle.add("kept", rows.take(np.flatnonzero(of_row == bucket)), bucket)
    yield from ()


def _by_part(rows: pa.Table) -> dict[tuple[str, int], dict[int, TokenizedDocument]]:
    """The rows by part and row of it."""
    found: dict[tuple[str, int], dict[int, TokenizedDocument]] = defaultdict(dict)
    for row in rows_of(rows, TokenizedDocument):
        found[row.source, row.part][row.part_row] = row
    return found


@dataclass(slots=True)
class _Batch:
    rows: list[TokenizedDocument] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    num_chars: int = 0


def _batches(out: Folder, part: PartFile, wanted: dict[int, TokenizedDocument]) -> Iterator[_Batch]:
    """The wanted rows of a part with their texts, in batches of some millions of characters."""
    batch, first = _Batch(), 0
    with out.open(part.file) as stream:
        for rows in pq.ParquetFile(stream).iter_batches(_TEXTS, columns=["doc_id", "text"]):
            for at in sorted(wanted.keys() & range(first, first + rows.num_rows)):
                doc_id, text = (rows[name][at - first].as_py() for name in ("doc_id", "text"))
                if text is None or doc_id != wanted[at].doc_id:
                    continue  # named by part 4
                batch.rows.append(wanted[at])
                batch.texts.append(text)
                batch.num_chars += len(text)
                if batch.num_chars >= _ENCODE_CHARS:
                    yield batch
                    batch = _Batch()
            first += rows.num_rows
    if batch.rows:
        yield batch


class _Comparison:
    """What is compared of each document."""

    def __init__(self, out: Folder, index: Index, with_: Retokenize, found: RetokenizeCounts) -> None:
        self._out, self._with, self._found = out, with_, found
        self._end = np.array([index.tokenizer.eot_id], dtype=np.uint32)
        self._shards = {(shard.source, shard.shard): shard for shard in index.shards}

    def of_part(self, part: PartFile, wanted: dict[int, TokenizedDocument]) -> Iterator[Problem]:
        """What does not hold of the wanted rows of a part."""
        for batch in _batches(self._out, part, wanted):
            for row, text, tokens in zip(
                batch.rows, batch.texts, self._with.encode_batch(batch.texts), strict=True
            ):
                self._found.num += 1
                yield from self._check_shard(row, tokens)
                yield from self._check_text(row, text, tokens)
            self._with.progress(len(batch.rows))

    def _check_shard(self, row: TokenizedDocument, tokens: Tokens) -> Iterator[Problem]:
        """Whether the shard has the tokens of the text."""
        document, shard = (
            f"document {row.doc_id.hex()}",
            self._shards.get((shard_source(row.source, row.bucket), row.shard)),
        )
        if shard is None:
            yield Problem("retokenize.tokens", document, "is kept, and lies in no shard")
            return
        expected = np.concatenate([tokens, self._end])
        if (len(expected), tokens_hash(expected)) == (row.num_tokens, row.tokens_hash):
            return
        start, num_bytes = row.start, max(0, row.num_tokens) * TOKEN_BYTES
        stored = self._out.read_range(shard.file, start * TOKEN_BYTES, num_bytes)
        held = np.frombuffer(stored[: len(stored) // TOKEN_BYTES * TOKEN_BYTES], "<u4")
        yield Problem(
            "retokenize.tokens", f"{shard.file} at {start}", f"{document}: {_difference(expected, held)}"
        )

    def _check_text(self, row: TokenizedDocument, text: str, tokens: Tokens) -> Iterator[Problem]:
        """Whether the tokens of the text give it back."""
        again = self._with.decode(tokens)
        if again == text:
            return
        if self._with.keeps(text):
            at = next(
                (i for i, (ours, theirs) in enumerate(zip(text, again, strict=False)) if ours != theirs), None
            )
            at = min(len(text), len(again)) if at is None else at
            message = f"its tokens give another text than its own, from character {at} on"
            yield Problem("retokenize.text", f"document {row.doc_id.hex()}", message)
            return
        self._found.num_changed += 1
        self._found.first_changed = min(row.doc_id, self._found.first_changed or row.doc_id)


def _difference(expected: Tokens, held: npt.NDArray[np.uint32]) -> str:
    """Where the tokens of a shard differ from those of the text."""
    same = min(len(expected), len(held))
    unequal = np.flatnonzero(expected[:same] != held[:same])
    at = int(unequal[0]) if len(unequal) else same
    if len(unequal):
        where = f"at position {at} the text gives token {expected[at]}, the shard holds {held[at]}"
    elif len(expected) == len(held):
        return f"the shard holds the {len(held)} tokens of its text, and another tokens_hash is recorded"
    else:
        where = (
            f"they are equal up to position {at}, where the {'shard' if same == len(held) else 'text'} ends"
        )
    return f"its text gives {len(expected)} tokens with end-of-text, the shard holds {len(held)}: {where}"
