"""A run that ends with texts: everything that needs no token works, and a tokenizer may follow."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from tests.support.outputs.byte_search import everything, of_folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.parsed_texts import EDITING, Tables, recipe
from tests.support.outputs.runs import fingerprint, run
from trainer.data.corpus import open_corpus
from trainer.options import DataTable

OFF: Tables = {"tokenize": {"off": True, "shard_tokens": 8_000}}


@pytest.fixture(scope="module")
def texts_only(crawl: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = tmp_path_factory.mktemp("texts-only")
    run(folder, recipe(crawl, str(folder / "out"), OFF))
    return Folder(str(folder / "out"))


def test_it_holds_texts_and_lineage_and_no_shard(texts_only: Folder, earlier: dict[str, str]) -> None:
    out, tokenized = texts_only, Folder(earlier["plain"])
    assert not out.names("shards") and out.names("documents")
    assert json.loads(out.read("index.json"))["tokenizer"] is None
    assert read_index(out).num_tokens == 0 and not read_index(out).has_tokens
    sql = "SELECT doc_id, status, stage, rule, clean_hash, duplicate_of FROM documents ORDER BY ALL"
    assert query(out, sql).rows == query(tokenized, sql).rows
    assert (
        query(out, "SELECT * FROM steps ORDER BY ALL").rows
        == query(tokenized, "SELECT * FROM steps ORDER BY ALL").rows
    )
    assert query(out, "SELECT count(*) FROM placements").rows == [(0,)]
    assert verify(out, verify_hooks(out)).problems == ()
    assert "What became of every document" in out.read("report.html").decode()


def test_a_tokenizer_may_follow(
    crawl: Path, texts_only: Folder, earlier: dict[str, str], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    run(tmp_path, recipe(crawl, out), texts_only.url)
    assert fingerprint(out) == fingerprint(earlier["plain"])


def test_a_tokenizer_may_follow_where_no_texts_were_kept_either(
    crawl: Path, earlier: dict[str, str], tmp_path: Path
) -> None:
    first, out, there = (str(tmp_path / name) for name in ("first", "out", "there"))
    without: Tables = {"run": {"keep_text": False}, **EDITING}
    run(tmp_path / "a", recipe(crawl, first, without, OFF))
    assert {Path(name).suffix for name in Folder(first).names("texts")} == {".zip", ".json"}
    run(tmp_path / "b", recipe(crawl, out, without), first)
    run(tmp_path / "c", recipe(crawl, there, without))
    assert fingerprint(out) == fingerprint(there)
    with pytest.raises(RecipeError, match=r"only its clean texts are there, and the step quality"):
        run(tmp_path / "d", recipe(crawl, str(tmp_path / "d"), {"quality": {"min_words": 9}}, without), first)
    with pytest.raises(
        RecipeError, match=r"only its clean texts are there, behind the step pii, which source 'web'"
    ):
        run(tmp_path / "d", recipe(crawl, str(tmp_path / "d"), without, {"pii": {"kinds": []}}), first)
    with pytest.raises(RecipeError, match=r"run\.keep_text = true, and .* kept no texts after parse"):
        run(tmp_path / "e", recipe(crawl, str(tmp_path / "e"), EDITING), first)
    assert verify(Folder(first), verify_hooks(Folder(first))).problems == ()


def test_a_purge_takes_texts_out_and_lets_nothing_of_them_stand(
    crawl: Path, texts_only: Folder, tmp_path: Path
) -> None:
    out = Folder(str(tmp_path / "out"))
    run(tmp_path / "a", recipe(crawl, out.url, OFF))
    doc_id, name, row = query(
        out, "SELECT doc_id, part, part_row FROM documents WHERE source = 'web' AND status = 'kept' LIMIT 1"
    ).rows[0]
    part = next(p for p in read_index(out).documents if (p.source, p.part) == ("web", name))
    text = pq.read_table(io.BytesIO(out.read(part.file)))["text"][row].as_py()
    assert main(["purge", out.url, "--doc", str(doc_id), "--reason", "r", "--by", "b", "--apply"]) == 0
    pieces = [text[i : i + 250].encode() for i in range(0, len(text) - 250, 250)]
    assert pieces and not [piece for data in everything(of_folder(out)) for piece in pieces if piece in data]
    assert verify(out, verify_hooks(out)).problems == ()
    (num_left,) = query(
        out, "SELECT count(*) FROM documents WHERE status = 'kept' AND purged IS NULL AND source = 'web'"
    ).rows[0]
    report = out.read("report.html").decode()
    assert "purged since" in report
    assert f"What is left: {num_left} documents" in report
    assert main(["purge", out.url, "--doc", str(doc_id), "--reason", "r", "--by", "b", "--apply"]) == 0


def test_texts_are_exported_and_tokens_are_refused(
    texts_only: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], small_ray: None
) -> None:
    (num_kept,) = query(texts_only, "SELECT count(*) FROM documents WHERE status = 'kept'").rows[0]
    assert main(["export", texts_only.url, "--format", "jsonl", "--to", str(tmp_path / "texts")]) == 0
    assert query(texts_only, "SELECT num_documents FROM exports").rows == [(num_kept,)]
    assert main(["export", texts_only.url, "--format", "megatron", "--to", str(tmp_path / "tokens")]) == 2
    assert "holds texts and no tokens (tokenize.off)" in capsys.readouterr().err


def test_a_training_on_it_is_refused(texts_only: Folder) -> None:
    with pytest.raises(
        ValueError, match=r"holds texts and no tokens \(tokenize\.off\): tokenize it into a new output"
    ):
        open_corpus([DataTable(out=texts_only.url)])


def test_a_scan_finds_a_rejected_document_among_the_parsed_texts(texts_only: Folder, tmp_path: Path) -> None:
    ((doc_id, part),) = query(
        texts_only, "SELECT doc_id, warc_file FROM documents WHERE stage = 'language' ORDER BY 1 LIMIT 1"
    ).rows
    assert part
    rows = [
        row
        for name in texts_only.names("texts")
        if name.endswith(".parquet")
        for row in pq.read_table(io.BytesIO(texts_only.read(name))).to_pylist()
    ]
    text = next(row["text"] for row in rows if row["doc_id"].hex() == doc_id)
    (tmp_path / "items.jsonl").write_text(json.dumps({"text": text}) + "\n")
    for ngram in ("13w", "8t"):
        words = ["scan", texts_only.url, "--against", str(tmp_path / "items.jsonl"), "--ngram", ngram]
        assert main([*words, "--to", str(tmp_path / f"{ngram}.json"), "--max-share", "1"]) == 0
        found = json.loads((tmp_path / f"{ngram}.json").read_text())["documents"]
        assert doc_id in [document["doc_id"] for document in found]
