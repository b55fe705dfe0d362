"""What is exported, read by the libraries that it is for, where they are installed.

Of these `datasets` is among the packages for development; megatron-core, mosaicml-streaming and litdata,
which bring gigabytes, are not, and readers written from the specifications stand for them everywhere
(`tests/support/outputs/export_readers.py`)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.export.conftest import Corpus

pytestmark = pytest.mark.differential("pipeline/export")


def library(name: str) -> Any:
    """The module, or the test is skipped. What it warns of at its import is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_megatron_core_reads_each_document(corpus: Corpus, tmp_path: Path, dtype: str) -> None:
    indexed = library("megatron.core.datasets.indexed_dataset")
    corpus.export(tmp_path / "megatron", "megatron", dtype=dtype)
    found = []
    for path in sorted((tmp_path / "megatron").rglob("*.idx")):
        dataset = indexed.IndexedDataset(str(path.with_suffix("")))
        found += [dataset[number].tolist() for number in range(len(dataset))]
    assert sorted(found) == sorted(corpus.tokens().values())


@pytest.mark.parametrize("split", [None, (("train", 0.7), ("test", 0.3))])
def test_datasets_loads_a_hugging_face_folder(corpus: Corpus, tmp_path: Path, split: Any) -> None:
    datasets = library("datasets")
    corpus.export(tmp_path / "hf", "hf", split=split or ())
    loaded = datasets.load_dataset(str(tmp_path / "hf"), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == ({"train", "test"} if split else {"train"})
    assert {row["id"]: row["text"] for rows in loaded.values() for row in rows} == corpus.texts()


@pytest.mark.parametrize(
    ("name", "files", "kind"), [("jsonl", "*.jsonl.zst", "json"), ("parquet", "*.parquet", "parquet")]
)
def test_datasets_loads_files_of_texts(
    corpus: Corpus, tmp_path: Path, name: str, files: str, kind: str
) -> None:
    datasets = library("datasets")
    corpus.export(tmp_path / name, name)
    found = {}
    for source in (
        "web",
        "posts",
    ):  # a column that is null in one source has no type there, and JSON has no schema
        loaded = datasets.load_dataset(
            kind,
            data_files=f"{tmp_path}/{name}/{source}/{files}",
            split="train",
            cache_dir=str(tmp_path / "cache"),
        )
        found |= dict(zip(loaded["id"], loaded["text"], strict=True))
    assert found == corpus.texts()


def test_streaming_reads_mds(corpus: Corpus, tmp_path: Path) -> None:
    streaming = library("streaming")
    corpus.export(tmp_path / "mds", "mds")
    dataset = streaming.LocalDataset(str(tmp_path / "mds"))
    assert {
        dataset[number]["id"]: dataset[number]["text"] for number in range(len(dataset))
    } == corpus.texts()


def test_litdata_reads_blocks_of_tokens(corpus: Corpus, tmp_path: Path) -> None:
    litdata = library("litdata")
    corpus.export(tmp_path / "litdata", "litdata")
    loader = litdata.TokensLoader(block_size=16)
    blocks = [
        block.tolist() for block in litdata.StreamingDataset(str(tmp_path / "litdata"), item_loader=loader)
    ]
    told = {tuple(tokens[at : at + 16]) for tokens in joined(corpus) for at in range(len(tokens) - 15)}
    assert len(blocks) > 100
    assert {tuple(block) for block in blocks} <= told


def joined(corpus: Corpus) -> list[list[int]]:
    """All tokens in the order of each shard."""
    from sluice.output import open_output

    tokens = corpus.tokens()
    tables = open_output(str(corpus.out)).placements()
    return [[token for row in table.to_pylist() for token in tokens[row["doc_id"].hex()]] for table in tables]
