"""What is exported is what was kept: text for text and token for token, as readers of each format see it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from fastwarc.warc import ArchiveIterator as FastwarcIterator
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from lineage.exports.manifest import MANIFEST, ExportedFile
from lineage.index.output_index import Shard, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from pipeline.export.formats.chunks import encode_chunk
from pipeline.export.formats.hf import index_files
from pipeline.export.formats.megatron import encode_index
from pipeline.export.formats.registry import check_request
from pipeline.export.process import export, in_process
from pipeline.export.request import ExportRequest, parse_split
from pipeline.export.tokens import ShardDocuments
from pipeline.export.units import ExportJob, ExportUnit
from tests.pipeline.export.conftest import Corpus
from tests.support.outputs import export_readers as readers
from tests.support.outputs import runs
from tests.support.stores.failing_server import Faults, failing_server
from tests.support.stores.range_server import Ranges, range_server

TEXT_READERS: dict[str, Callable[[Path], dict[str, str]]] = {
    "jsonl": lambda folder: dict(readers.read_jsonl(folder)),
    "parquet": lambda folder: dict(readers.read_parquet(folder)),
    "hf": lambda folder: {row["id"]: row["text"] for row in readers.read_hf(folder)["train"]},
    "mds": lambda folder: {sample["id"]: sample["text"] for sample in readers.read_mds(folder)},
}
TOKEN_READERS: dict[str, Callable[[Path, str], dict[str, list[int]]]] = {
    "megatron": lambda folder, _: dict(readers.read_megatron(folder)),
    "olmo": lambda folder, dtype: dict(readers.read_olmo(folder, dtype)),
    "llmc": lambda folder, _: dict(readers.read_llmc(folder)),
}


@pytest.mark.parametrize("name", TEXT_READERS)
def test_a_text_format_holds_the_text_of_each_kept_document_and_no_other(
    made_corpus: Corpus, corpus: Corpus, tmp_path: Path, name: str
) -> None:
    done = corpus.export(tmp_path / name, name)
    assert TEXT_READERS[name](tmp_path / name) == made_corpus.texts()
    assert done.row.num_documents == len(made_corpus.texts())


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("name", TOKEN_READERS)
def test_a_token_format_holds_the_tokens_of_each_kept_document_and_no_other(
    corpus: Corpus, tmp_path: Path, name: str, dtype: str
) -> None:
    done = corpus.export(tmp_path / name, name, dtype=dtype)
    wanted = corpus.tokens()
    assert TOKEN_READERS[name](tmp_path / name, f"<u{int(dtype[4:]) // 8}") == wanted
    assert (done.row.num_documents, done.row.num_tokens) == (len(wanted), sum(map(len, wanted.values())))


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_litdata_and_mds_hold_the_tokens_document_by_document(
    corpus: Corpus, tmp_path: Path, dtype: str
) -> None:
    wanted = corpus.tokens()
    corpus.export(tmp_path / "litdata", "litdata", dtype=dtype)
    assert sorted(readers.read_litdata(tmp_path / "litdata")) == sorted(wanted.values())
    corpus.export(tmp_path / "mds", "mds", dtype=dtype, tokens=True)
    assert {sample["id"]: sample["tokens"] for sample in readers.read_mds(tmp_path / "mds")} == wanted


def test_tokens_take_two_bytes_where_the_vocabulary_fits(corpus: Corpus, tmp_path: Path) -> None:
    done = corpus.export(tmp_path / "olmo", "olmo")
    assert sum(path.stat().st_size for path in (tmp_path / "olmo").rglob("*.npy")) == 2 * done.row.num_tokens


def test_a_whole_shard_is_another_name_of_the_same_file_unless_a_copy_is_wanted(
    corpus: Corpus, tmp_path: Path
) -> None:
    corpus.export(tmp_path / "linked", "megatron", dtype="uint32")
    corpus.export(tmp_path / "copied", "megatron", dtype="uint32", links=False)
    for shard in read_index(str(corpus.out)).shards:
        name, own = f"{shard.source}/{shard.shard:05d}.bin", corpus.out / shard.file
        assert os.path.samefile(tmp_path / "linked" / name, own)
        assert not os.path.samefile(tmp_path / "copied" / name, own)
        assert (tmp_path / "copied" / name).read_bytes() == own.read_bytes()


def test_nanochat_finds_a_column_of_texts_and_a_last_file_to_validate_with(
    corpus: Corpus, tmp_path: Path
) -> None:
    corpus.export(tmp_path / "nanochat", "nanochat")
    training, validation = readers.read_nanochat(tmp_path / "nanochat")
    assert sorted(training + validation) == sorted(corpus.texts().values())
    assert 0 < len(validation) < len(training)


def test_warc_holds_the_records_that_the_texts_came_from_as_they_were(corpus: Corpus, tmp_path: Path) -> None:
    corpus.export(tmp_path / "warc", "warc", sources=("web",))
    crawled = {
        key: data
        for path in corpus.crawl.glob("*.warc.gz")
        for key, data in readers.warc_records(path).items()
    }
    kept = {
        row["record_id"]
        for row in read_table(Folder(str(corpus.out)), "documents").to_pylist()
        if row["source"] == "web" and row["status"] == "kept"
    }
    exported = readers.read_warc(tmp_path / "warc")
    assert exported == {key: data for key, data in crawled.items() if key in kept} != {}


@pytest.mark.differential("pipeline/export")
def test_warcio_and_fastwarc_read_what_is_exported_and_their_digests_hold(
    corpus: Corpus, tmp_path: Path
) -> None:
    corpus.export(tmp_path / "warc", "warc", sources=("web",))
    for path in (tmp_path / "warc").rglob("*.warc.gz"):
        with path.open("rb") as stream:
            by_warcio = {
                record.rec_headers["WARC-Record-ID"]: record.content_stream().read()
                for record in WarcioIterator(stream, check_digests="raise")
            }
        with path.open("rb") as stream:
            by_fastwarc = {
                record.headers["WARC-Record-ID"]: record.reader.read()
                for record in FastwarcIterator(stream, parse_http=True, verify_digests=True)
            }
        assert by_warcio == by_fastwarc != {}


@pytest.mark.differential("pipeline/export")
@pytest.mark.skipif(shutil.which("wget") is None, reason="wget is not here")
def test_wget_fetches_a_document_s_record_from_its_place_in_an_export(corpus: Corpus, tmp_path: Path) -> None:
    corpus.export(tmp_path / "warc", "warc", sources=("web",))
    path = next((tmp_path / "warc").rglob("*.documents.parquet"))
    rows = pq.read_table(path).to_pylist()
    with failing_server(path.parent, Faults()) as address:
        for row in (rows[0], rows[len(rows) // 2], rows[-1]):
            name = path.name.replace(".documents.parquet", ".warc.gz")
            command = [
                "wget",
                "--quiet",
                f"--start-pos={row['offset']}",
                f"{address}/{name}",
                "-O",
                "from-here.warc.gz",
            ]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
            with (tmp_path / "from-here.warc.gz").open("rb") as stream:
                record = next(iter(WarcioIterator(stream, check_digests="raise")))
                assert record.rec_headers["WARC-Target-URI"] == row["url"]
                assert record.content_stream().read()


def test_a_record_that_is_not_what_it_was_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    wrong = tmp_path / "crawl"
    wrong.mkdir()
    for path in corpus.crawl.glob("*.warc.gz"):
        (wrong / path.name).write_bytes(path.read_bytes())
    first, second, *_ = sorted(corpus.crawl.glob("*.warc.gz"))
    originals = {path: path.read_bytes() for path in (first, second)}
    try:
        first.write_bytes(originals[second])
        with pytest.raises((OSError, ValueError), match=r"web-.*\.warc\.gz"):
            corpus.export(tmp_path / "warc", "warc", sources=("web",))
    finally:
        for path, data in originals.items():
            path.write_bytes(data)
    assert not list((tmp_path / "warc").rglob("*.warc.gz"))


def test_of_crawl_files_whose_names_end_alike_each_gives_its_own_records(
    corpus: Corpus, tmp_path: Path
) -> None:
    first, second, third = sorted(corpus.crawl.glob("web-*.warc.gz"))
    names = {first: "a-long-name/web.warc.gz", second: "b/1/web.warc.gz", third: "b/1/2/web.warc.gz"}
    for path, name in names.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(path.read_bytes())
    patterns = (str(tmp_path / "a-long-name/*.gz"), str(tmp_path / "b/**/*.gz"))
    runs.run(tmp_path, runs.recipe(str(tmp_path / "named"), {"web": patterns}))
    made = Corpus(tmp_path / "named", tmp_path, corpus.tokenizer)
    done = made.export(tmp_path / "warc", "warc")
    rows = [
        row
        for path in sorted((tmp_path / "warc").rglob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert {row["doc_id"]: row["url"] for row in rows} == {
        row["doc_id"].hex(): row["url"]
        for row in read_table(Folder(str(made.out)), "documents").to_pylist()
        if row["status"] == "kept"
    }
    assert {row["file_path"] for row in rows} == {"web.warc.gz", "1/web.warc.gz", "1/2/web.warc.gz"}
    assert done.row.num_documents == len(rows)


def test_records_come_from_files_on_a_web_server_whose_names_a_query_follows(
    made_corpus: Corpus, tmp_path: Path
) -> None:
    with range_server(made_corpus.crawl, Ranges()) as url:
        files = [f"{url}/{path.name}?version=1" for path in made_corpus.crawl.glob("web-*.warc.gz")]
        runs.run(tmp_path, runs.recipe(str(tmp_path / "out"), {"web": tuple(files)}))
        made = Corpus(tmp_path / "out", tmp_path, made_corpus.tokenizer)
        done = made.export(tmp_path / "warc", "warc")
    kept = [
        row for row in read_table(Folder(str(made.out)), "documents").to_pylist() if row["status"] == "kept"
    ]
    assert done.row.num_documents == len(kept) > 10


def test_warc_of_a_source_without_warc_files_is_refused_before_anything_is_written(
    corpus: Corpus, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"posts.*no WARC file"):
        corpus.export(tmp_path / "warc", "warc")
    assert not (tmp_path / "warc").exists()


def test_rows_say_where_each_text_was_found(corpus: Corpus, tmp_path: Path) -> None:
    corpus.export(tmp_path / "hf", "hf")
    rows = {row["id"]: row for row in readers.read_hf(tmp_path / "hf")["train"]}
    known = {row["doc_id"].hex(): row for row in read_table(Folder(str(corpus.out)), "documents").to_pylist()}
    for doc_id, row in rows.items():
        record = known[doc_id]
        assert (
            row["dump"],
            row["url"],
            row["file_path"],
            row["offset"],
            row["record_id"],
            row["language"],
        ) == (
            record["source"],
            record["url"],
            record["warc_file"],
            record["warc_offset"],
            record["record_id"],
            record["language"],
        )
    assert None not in {row["record_id"] for row in rows.values()}
    configs = (
        readers.read_hf(tmp_path / "hf", "web")["train"] + readers.read_hf(tmp_path / "hf", "posts")["train"]
    )
    assert {row["id"] for row in configs} == rows.keys()


def test_splits_share_the_documents_out_and_alike_in_every_format(corpus: Corpus, tmp_path: Path) -> None:
    split = parse_split("train=0.8,test")
    corpus.export(tmp_path / "hf", "hf", split=split)
    corpus.export(tmp_path / "megatron", "megatron", split=split, dtype="uint32")
    corpus.export(tmp_path / "mds", "mds", split=split)
    rows = readers.read_hf(tmp_path / "hf")
    found = {name: {row["id"] for row in rows[name]} for name in ("train", "test")}
    assert found["train"] | found["test"] == corpus.texts().keys() and not found["train"] & found["test"]
    assert 0.6 < len(found["train"]) / len(corpus.texts()) < 0.95
    for name in ("train", "test"):
        prefixes = (tmp_path / "megatron").rglob(f"{name}-*.documents.parquet")
        of_tokens = {
            doc_id for path in prefixes for doc_id in pa.parquet.read_table(path)["doc_id"].to_pylist()
        }
        assert of_tokens == found[name]
        assert {sample["id"] for sample in readers.read_mds(tmp_path / "mds" / name)} == found[name]
    assert dict(readers.read_megatron(tmp_path / "megatron")) == corpus.tokens()


def test_a_source_named_default_hides_no_other_and_splits_may_be_words_of_yaml() -> None:
    files = [
        ExportedFile(
            file=f"data/{source}/{split}-00000.parquet",
            hash="",
            bytes=1,
            split=split,
            num_documents=1,
            num_tokens=0,
        )
        for source in ("default", "web")
        for split in ("on", "null")
    ]
    job = ExportJob(out="", to="", request=ExportRequest(format="hf"), vocab_size=0, links=False)
    head = index_files(job, files)["README.md"].decode().split("---\n")[1]
    read = {
        entry["config_name"]: {one["split"]: one["path"] for one in entry["data_files"]}
        for entry in yaml.safe_load(head)["configs"]
    }
    assert read == {
        name: {split: f"data/{folder}/{split}-*.parquet" for split in ("on", "null")}
        for name, folder in {"default": "*", "_default": "default", "web": "web"}.items()
    }


@pytest.mark.parametrize("name", ["jsonl", "mds", "megatron", "litdata"])
def test_bytes_do_not_depend_on_the_order_in_which_units_are_written(
    corpus: Corpus, tmp_path: Path, name: str, everywhere: Callable[[Path], dict[str, bytes]]
) -> None:
    def backwards(job: ExportJob, pieces: Any) -> Any:
        assert len(pieces) > 2
        return in_process(job, list(pieces)[::-1])[::-1]

    corpus.export(tmp_path / "forwards", name)
    export(corpus.asked(tmp_path / "backwards", name), backwards)
    left, right = everywhere(tmp_path / "forwards"), everywhere(tmp_path / "backwards")
    assert left.pop(MANIFEST) != right.pop(MANIFEST)  # it holds the export's name
    assert left == right


@given(samples=st.lists(st.binary(max_size=40), max_size=9), between=st.binary(max_size=9))
def test_samples_come_out_of_a_chunk_as_they_went_in(samples: list[bytes], between: bytes) -> None:
    data = encode_chunk(samples, between)
    assert list(readers._samples(data, len(between))) == samples


@given(lengths=st.lists(st.integers(1, 1 << 20), max_size=9), token_bytes=st.sampled_from([2, 4]))
def test_a_megatron_index_says_how_long_each_document_is_and_where(
    lengths: list[int], token_bytes: int
) -> None:
    shard = Shard(
        **dict.fromkeys(
            ("source", "file", "hash", "blocks_file", "blocks_hash", "index_file", "index_hash"), "x"
        ),
        shard=0,
        num_tokens=sum(lengths),
        num_documents=len(lengths),
    )
    rows = pa.table({"num_tokens": pa.array(lengths, pa.int64())})
    data = encode_index(ShardDocuments(Folder("/x"), shard, rows), token_bytes)
    num = len(lengths)
    assert len(data) == 42 + 20 * num and struct.unpack("<Q", data[18:26]) == (num,)
    assert np.frombuffer(data, "<i4", num, 34).tolist() == lengths
    ends = np.cumsum([0, *lengths]) * token_bytes
    assert np.frombuffer(data, "<i8", num, 34 + 4 * num).tolist() == ends[:-1].tolist()


@given(doc_id=st.binary(min_size=16, max_size=16), share=st.floats(0.01, 0.99))
def test_a_document_that_is_in_the_first_split_stays_there_when_that_one_grows(
    doc_id: bytes, share: float
) -> None:
    def split_at(first: float) -> str:
        return ExportRequest(format="jsonl", split=(("a", first), ("b", 1 - first))).split_of(doc_id)

    if split_at(share) == "a":
        assert split_at(min(share + 0.005, 1.0)) == "a"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("train=0.5", "sum to 1"),
        ("a,b", "sum to 1"),
        ("a=0.5,a=0.5", "different"),
        ("a=x,b", "share"),
        ("A=1", "lower"),
    ],
)
def test_a_wrong_split_is_refused_by_name(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_split(text)


@pytest.mark.parametrize("name", ["megatron", "litdata"])
def test_ids_above_int32_are_refused_where_a_format_holds_int32(name: str) -> None:
    check_request(ExportRequest(format=name), 1 << 31)
    with pytest.raises(
        RecipeError, match=f"--format {name}: it holds tokens as int32.*use mds, olmo or llmc"
    ):
        check_request(ExportRequest(format=name), (1 << 31) + 1)
    check_request(ExportRequest(format="olmo"), (1 << 31) + 1)


def test_every_line_of_jsonl_is_strict_json(corpus: Corpus, tmp_path: Path) -> None:
    corpus.export(tmp_path / "jsonl", "jsonl")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    import zstandard

    for path in (tmp_path / "jsonl").rglob("*.zst"):
        data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        for line in data.splitlines():
            assert json.loads(line, parse_constant=refuse)["text"]


def test_names_of_units_are_told_from_other_files() -> None:
    from lineage.exports.manifest import is_of_units

    piece = ExportUnit(source="web", number=3, inputs="")
    for name in (
        piece.name(".parquet", "train", folder="data"),
        piece.name(".idx"),
        piece.name("-004.mds", folder="test", between="-"),
        f"shard-{piece.name('.parquet', between='-')}",
    ):
        assert is_of_units(name, {"web", "books"}) and not is_of_units(name, {"books"})
    assert not is_of_units("README.md", {"web"}) and not is_of_units("web/notes.txt", {"web"})
