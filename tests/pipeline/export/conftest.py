"""A small corpus to export, and what is known of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from pipeline.export.process import CorpusExport, ExportResult, export, in_process
from pipeline.export.request import ExportRequest
from stages.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.made_once import made_once
from tests.support.outputs import runs


@dataclass(frozen=True, slots=True)
class Corpus:
    """A finished OUT of pages and posts, its crawl, and its tokenizer of 1,024 ids."""

    out: Path
    crawl: Path
    tokenizer: Tokenizer

    def texts(self) -> dict[str, str]:
        """What is kept and not purged, by doc_id: joined from the tables and parts, not from dedup/."""
        out = Folder(str(self.out))
        purged = set(read_table(out, "purged")["doc_id"].to_pylist())
        places = {
            (row["source"], row["part"], row["part_row"]): row["doc_id"]
            for row in read_table(out, "documents").to_pylist()
            if row["status"] == "kept" and row["doc_id"] not in purged
        }
        found = {}
        for part in read_index(out).documents:
            texts = pq.read_table(self.out / part.file)["text"].to_pylist()
            for number, text in enumerate(texts):
                if (part.source, part.part, number) in places:
                    found[places[part.source, part.part, number].hex()] = text
        assert len(found) == len(places) > 50
        return found

    def tokens(self) -> dict[str, list[int]]:
        """Their tokens, each with the end-of-text id."""
        eot = self.tokenizer.eot_id
        return {doc_id: [*self.tokenizer.encode(text).tolist(), eot] for doc_id, text in self.texts().items()}

    def export(self, to: Path, format_name: str, **options: object) -> ExportResult:
        """Export in this process."""
        return export(self.asked(to, format_name, **options), in_process)

    def asked(self, to: Path, format_name: str, **options: object) -> CorpusExport:
        """What `sluice export` would ask for; small files."""
        links = bool(options.pop("links", True))
        request = ExportRequest(format=format_name, **{"file_documents": 30, **options})  # type: ignore[arg-type]
        return CorpusExport(
            out=Folder(str(self.out)), to=Folder(str(to)), name=to.name, request=request, links=links
        )


@pytest.fixture(scope="session")
def made_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The corpus, made once; nobody writes to it."""

    def make(folder: Path) -> str:
        inputs = make_tiny_crawl(folder)
        encoding = tiny_tokenizer(folder)
        tokenize = {"encoding": encoding, "shard_tokens": 8_000}
        runs.run(folder, runs.recipe(str(folder / "out"), inputs, tokenize=tokenize))
        return encoding

    folder, encoding = made_once(tmp_path_factory, "exported", make)
    return Corpus(folder / "out", folder, load_tokenizer(encoding))


@pytest.fixture
def corpus(made_corpus: Corpus, tmp_path: Path) -> Corpus:
    """A copy of the corpus that a test may write to."""
    shutil.copytree(made_corpus.out, tmp_path / "out")
    return Corpus(tmp_path / "out", made_corpus.crawl, made_corpus.tokenizer)


@pytest.fixture(scope="session")
def everywhere() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder, hidden ones too."""
    return lambda folder: {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
