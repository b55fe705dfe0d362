"""Small corpora for deduplication: texts written as the KEYS files and document parts that units leave."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lineage.ids import content_hash, text_hash
from lineage.storage.folder import Folder
from lineage.store.tables import DEDUP, KEYS, PART
from pipeline.dedup.corpus import DedupJob, deduplicate
from pipeline.dedup.exchange import Engine
from pipeline.dedup.inputs import DedupUnit, EarlierFile
from pipeline.results.dedup_result import DedupResult
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """A document of a corpus. Its id follows from `name`, or from text and URL."""

    text: str
    url: str | None = None
    captured_at: str | None = None
    name: str | None = None

    @property
    def doc_id(self) -> bytes:
        return content_hash((self.name or f"{self.url} {self.text}").encode("utf-8", "surrogatepass"))


Verdict = dict[str, Any]
Signature = Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents by (source_index, file_index), and how they are deduplicated."""

    files: dict[tuple[int, int], Sequence[Doc]]
    table: DedupTable = field(default_factory=lambda: DedupTable(normalise="none"))
    group_files: int = 1000
    earlier: tuple[EarlierFile, ...] = ()

    def job(self, root: Path, **options: Any) -> DedupJob:
        """The corpus written below `root`."""
        work, out = Folder(str(root / "work")), Folder(str(root))
        signature = functools.cache(Signer(self.table).signature)
        units = []
        for (source, file), docs in self.files.items():
            unit = DedupUnit(
                source_index=source,
                file_index=file,
                keys=f"units/{source}-{file}/keys.parquet",
                part=f"documents/s{source}/part-{file:05d}.parquet",
            )
            rows = [
                _key_row(doc, source, file, number, signature if self.table.near else _none)
                for number, doc in enumerate(docs)
            ]
            _write(work, unit.keys, pa.Table.from_pylist(rows, schema=KEYS))
            _write(out, unit.part, pa.Table.from_pylist([_part_row(doc) for doc in docs], schema=PART))
            units.append(unit)
        num_rows = sum(map(len, self.files.values()))
        job = DedupJob(
            table=self.table,
            work=work,
            out=out,
            units=tuple(units),
            num_rows=num_rows,
            group_files=self.group_files,
            earlier=self.earlier,
        )
        return replace(job, **options)

    def verdicts(self, root: Path, engine: Engine | None = None, **options: Any) -> list[Verdict]:
        """Every verdict, in order."""
        job = self.job(root, **options)
        return read_verdicts(job, deduplicate(job, engine))

    def texts(self) -> dict[bytes, str]:
        """The text of each doc_id."""
        return {doc.doc_id: doc.text for docs in self.files.values() for doc in docs}


def one_file(docs: Sequence[Doc], **options: Any) -> Corpus:
    """A corpus of one file."""
    return Corpus(files={(0, 0): docs}, **options)


def read_verdicts(job: DedupJob, result: DedupResult) -> list[Verdict]:
    """The rows of every verdict file."""
    return [row for group in result.verdicts for row in pq.read_table(job.work.at(group.name)).to_pylist()]


def write_earlier(
    root: Path, docs: Sequence[Doc], table: DedupTable, *, purged: Sequence[int] = ()
) -> EarlierFile:
    """A finished output below `root` that kept `docs`; the texts at the `purged` indices are gone from its
    part."""
    out, signature = Folder(str(root)), Signer(table).signature
    rows = [
        {**_key_row(doc, 0, 0, number, signature), "source": "web", "part": 3}
        for number, doc in enumerate(docs)
    ]
    kept = [{name: row[name] for name in DEDUP.names} for row in rows]
    _write(out, "dedup/web/part-00003.parquet", pa.Table.from_pylist(kept, schema=DEDUP))
    parts = [_part_row(doc) | ({"text": None} if number in purged else {}) for number, doc in enumerate(docs)]
    _write(out, "documents/web/part-00003.parquet", pa.Table.from_pylist(parts, schema=PART))
    return EarlierFile(
        out=str(root), dedup="dedup/web/part-00003.parquet", parts=((3, "documents/web/part-00003.parquet"),)
    )


def _none(_: str) -> None:
    return None


def _key_row(doc: Doc, source: int, file: int, number: int, signature: Signature) -> dict[str, Any]:
    return {
        "doc_id": doc.doc_id,
        "source_index": source,
        "file_index": file,
        "offset": 100 * number,
        "part_row": number,
        "num_chars": len(doc.text),
        "captured_at": doc.captured_at,
        "url_key": content_hash(doc.url.encode()) if doc.url else None,
        "clean_hash": text_hash(doc.text),
        "signature": signature(doc.text),
    }


def _part_row(doc: Doc) -> dict[str, Any]:
    return {
        "doc_id": doc.doc_id,
        "text": doc.text,
        "url": doc.url,
        "captured_at": doc.captured_at,
        "language": "en",
        "language_score": 1.0,
        "metadata": None,
    }


def _write(folder: Folder, name: str, table: pa.Table) -> None:
    with folder.writing(name) as file:
        pq.write_table(
            table, file, row_group_size=max(7, len(table) // 10)
        )  # several even where there are few rows


def random_words(seed: object, num_words: int) -> list[str]:
    """Words that two different seeds do not share in order."""
    chosen = random.Random(str(seed))
    return [f"w{chosen.randrange(100_000)}" for _ in range(num_words)]


def pair_at(similarity: float, seed: object, num_words: int = 604) -> tuple[str, str]:
    """Two texts whose 5-word shingles have about this Jaccard: a shared beginning, then a tail of each one's
    own."""
    shared = round(num_words * 2 * similarity / (1 + similarity))
    start = random_words(seed, shared)
    return tuple(" ".join(start + random_words((seed, side), num_words - shared)) for side in "ab")  # type: ignore[return-value]
