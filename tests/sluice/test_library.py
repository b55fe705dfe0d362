"""The library against the command line: equal verdicts, equal texts and tokens, the batches of a real
training."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import sluice
from lineage.ids import tokens_hash
from lineage.index.output_index import NotFinishedError
from lineage.trace.tracer import UnknownError
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.phases.steps import step_tables
from sluice.output import ChangedOutputError, PurgedError
from stages.chain import build_chain
from stages.document import Rejection
from stages.reading.options import ReadOptions
from stages.reading.reader import read_one
from tests.support.checkout import ROOT
from tests.support.inputs.make_warc import http, record
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import recipe, write_recipe
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.data.dataset import IGNORED


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small crawl, its recipe and its finished output `out`."""
    folder = tmp_path_factory.mktemp("crawl")
    sources = make_tiny_crawl(folder)
    plain = recipe(str(folder / "out"), sources, tokenize={"encoding": tiny_tokenizer(folder)})
    sluice.run(write_recipe(folder / "recipe.toml", plain))
    return folder


@pytest.fixture(scope="module")
def output(crawl: Path) -> sluice.Output:
    return sluice.open_output(str(crawl / "out"))


def test_import_loads_neither_ray_nor_torch_and_the_module_is_the_command() -> None:
    code = "import sluice, sys; sluice.load_recipe; print({'ray', 'torch'} & sys.modules.keys())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "set()"
    told = subprocess.run(
        [sys.executable, "-m", "sluice", "--version"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["sluice", sluice.__version__]
    assert set(dir(sluice)) == {*sluice.__all__, "__version__"}
    assert all(getattr(sluice, name) is not None for name in sluice.__all__)
    with pytest.raises(AttributeError, match="no attribute 'open'"):
        _ = sluice.open


def test_a_finished_run_is_found_done_and_overrides_need_a_path(crawl: Path) -> None:
    loaded = sluice.load_recipe(crawl / "recipe.toml")
    assert sluice.run(loaded).num_kept > 50
    with pytest.raises(ValueError, match="overrides"):
        sluice.load_recipe(loaded, ["run.seed=1"])
    with pytest.raises(sluice.RecipeError, match="unknown step"):
        sluice.load_recipe(crawl / "recipe.toml", ['source.0.steps=["parse", "prase"]'])


def posts(crawl: Path) -> Iterator[tuple[str, str]]:
    """Each post's file and text, in the order of the run."""
    for path in sorted(crawl.glob("posts-*.jsonl")):
        for line in path.read_text().splitlines():
            yield path.name, json.loads(line)["text"]


def test_steps_decide_on_texts_as_the_run_did(crawl: Path, output: sluice.Output) -> None:
    steps = sluice.Steps(crawl / "recipe.toml", source="posts")
    judged = list(steps.judge(text for _, text in posts(crawl)))
    rows = output.sql(
        "SELECT status, stage, rule, value, language FROM documents WHERE source = 'posts'"
        " ORDER BY warc_file, warc_offset"
    ).to_pylist()
    assert len(judged) == len(rows) > 40
    for found, row in zip(judged, rows, strict=True):
        if row["status"] == "rejected":
            by = found.decided_by
            assert by is not None
            assert (by.stage, by.rule, by.value) == (row["stage"], row["rule"], row["value"])
        else:
            assert found.is_kept
            assert found.language == row["language"]
    assert {found.is_kept for found in judged} == {True, False}
    assert [steps(text) for _, text in posts(crawl)] == judged
    again = pickle.loads(pickle.dumps(steps))
    assert again("Too few words.") == steps("Too few words.")
    assert again is pickle.loads(pickle.dumps(steps)), "a process loads the models once"


def test_steps_find_the_text_of_a_page_and_judge_its_url(
    crawl: Path, output: sluice.Output, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("bad.example\n")
    steps = sluice.Steps(crawl / "recipe.toml", overrides=[f'url.block_hosts=["{tmp_path}/hosts"]'])
    text = next(text for file, text in posts(crawl))
    page = f"<html><body><article><p>{text}</p></article></body></html>".encode()
    assert steps.judge_html(page, url="https://good.example/").text.split() == text.split()
    blocked = steps.judge_html(page, url="https://bad.example/a").decided_by
    assert blocked is not None
    assert blocked.stage == "url"
    with pytest.raises(sluice.RecipeError, match="the recipe has 'web', 'posts'"):
        sluice.Steps(crawl / "recipe.toml", source="books")


@pytest.mark.parametrize("content_type", ["text/html; charset=iso-8859-1", "text/plain; charset=iso-8859-1"])
def test_a_page_is_read_by_the_header_that_a_server_sent_as_in_a_run(crawl: Path, content_type: str) -> None:
    sentence = "He said that the café by the harbour was naïve über alles in the weather of that day"
    text = (
        sentence
        if "plain" in content_type
        else f"<html><body><article><p>{sentence}</p></article></body></html>"
    )
    page = text.encode("iso-8859-1")
    data = record(http(page, content_type), "page")
    read = read_one(io.BytesIO(data), 0, ReadOptions(source="web", file="a.warc"))
    loaded = sluice.load_recipe(crawl / "recipe.toml", ["language.min_score=0.0"])
    made = build_chain(loaded.source[0].steps, step_tables(loaded))(read)
    document = made.document if isinstance(made, Rejection) else made
    judged = sluice.Steps(loaded).judge_html(page, url=read.url, content_type=content_type)
    assert judged.text == document.text == sentence


def test_steps_on_a_batch_give_the_verdicts_of_the_single_texts(crawl: Path) -> None:
    steps = sluice.Steps(crawl / "recipe.toml", source="posts")
    texts = [text for _, text in posts(crawl)]
    batch = pa.table({"id": range(len(texts)), "body": texts, "language": ["?"] * len(texts)})
    judged = list(map(steps, texts))
    kept = steps.on_batches("body")(batch)
    assert kept["id"].to_pylist() == [number for number, found in enumerate(judged) if found.is_kept]
    assert kept["body"].to_pylist() == [found.text for found in judged if found.is_kept]
    assert kept["language"].to_pylist() == [found.language for found in judged if found.is_kept]
    whole = steps.on_batches("body", rejected=True)(batch)
    assert whole["kept"].to_pylist() == [found.is_kept for found in judged]
    rules = [found.decided_by and found.decided_by.rule for found in judged]
    assert whole["rule"].to_pylist() == rules
    with pytest.raises(KeyError, match="no column 'text'"):
        steps.on_batches()(batch)


def test_texts_are_those_of_kept_documents_and_tokens_decode_to_them(
    output: sluice.Output, crawl: Path
) -> None:
    from stages.tokens.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(crawl / "tiny.tiktoken"))
    rows = [row for table in output.texts() for row in table.to_pylist()]
    kept = output.sql(
        "SELECT doc_id, source FROM documents WHERE status = 'kept' ORDER BY doc_id"
    ).to_pylist()
    assert sorted((row["doc_id"], row["source"]) for row in rows) == [
        (r["doc_id"], r["source"]) for r in kept
    ]
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in output.document_files()) > len(rows)
    for row in rows[:10]:
        tokens = output.tokens(row["doc_id"])
        assert tokens[-1] == output.tokenizer.eot_id
        assert tokenizer.decode(tokens[:-1]) == row["text"] == output.text(bytes.fromhex(row["doc_id"]))
    assert {row["source"] for table in output.texts("posts") for row in table.to_pylist()} == {"posts"}


def test_placements_tile_the_shards_and_agree_with_the_store(output: sluice.Output) -> None:
    found = pa.concat_tables(output.placements())
    told = output.sql(
        "SELECT doc_id, source, shard, start, num_tokens FROM placements ORDER BY source, shard, start"
    )
    assert [row["doc_id"] for row in found.to_pylist()] == told["doc_id"].to_pylist()
    for name in ("source", "shard", "start", "num_tokens"):
        assert found[name].to_pylist() == told[name].to_pylist()
    assert sum(found["num_tokens"].to_pylist()) == output.index.num_tokens


def test_a_source_that_the_output_does_not_have_is_an_error_that_names_those_it_has(
    output: sluice.Output,
) -> None:
    for read in (output.texts, output.placements, output.document_files):
        with pytest.raises(ValueError, match=f"source 'typo': the output has '{output.sources[0]}'"):
            list(read("typo"))
        assert list(read(output.sources[0]))


def test_texts_of_nothing_have_the_columns_of_texts(output: sluice.Output, tmp_path: Path) -> None:
    (tmp_path / "short.jsonl").write_text('{"text": "Too short."}\n')
    sources = {"short": (str(tmp_path / "short.jsonl"),)}
    sluice.run(write_recipe(tmp_path / "recipe.toml", recipe(str(tmp_path / "out"), sources)))
    frame, full = sluice.open_output(str(tmp_path / "out")).to_pandas(), output.to_pandas()
    assert len(frame) == 0 < len(full) and list(frame.columns) == list(full.columns)
    assert list(frame.dtypes) == list(full.dtypes)


def test_histories_by_id_and_by_url(output: sluice.Output) -> None:
    row = output.sql(
        "SELECT doc_id, url FROM documents WHERE status = 'kept' AND url IS NOT NULL LIMIT 1"
    ).to_pylist()[0]
    (by_id,) = output.trace(doc_id=row["doc_id"])
    assert (by_id.url, by_id.doc_id) == (row["url"], row["doc_id"])
    assert output.trace(doc_id=bytes.fromhex(row["doc_id"])) == [by_id]
    assert row["doc_id"] in [history.doc_id for history in output.trace(url=row["url"])]
    with pytest.raises(UnknownError):
        output.trace(doc_id="0" * 32)
    with pytest.raises(ValueError, match="one of them"):
        output.trace()


def test_a_rejected_document_has_neither_text_nor_tokens(output: sluice.Output) -> None:
    doc_id = output.sql("SELECT doc_id FROM documents WHERE status = 'rejected' LIMIT 1")["doc_id"][0].as_py()
    with pytest.raises(LookupError, match="no text of it is kept"):
        output.text(doc_id)
    with pytest.raises(LookupError, match="it has no tokens"):
        output.tokens(doc_id)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_document_that_another_source_turned_down_has_its_text_and_tokens(
    names: tuple[str, str], crawl: Path, tmp_path: Path
) -> None:
    from stages.tokens.tokenizer import load_tokenizer

    keeps, rejects = names
    inputs = dict.fromkeys(names, (str(crawl / "web-*.warc.gz"),))
    encoding = str(crawl / "tiny.tiktoken")
    plain = recipe(
        str(tmp_path / "out"), inputs, quality={"min_words": 9000}, tokenize={"encoding": encoding}
    )
    keeping = next(source for source in plain["source"] if source["name"] == keeps)
    keeping["steps"] = ["url", "parse", "identity", "dedup.exact"]
    sluice.run(write_recipe(tmp_path / "recipe.toml", plain))
    output = sluice.open_output(str(tmp_path / "out"))
    found = output.sql("SELECT doc_id, source, status FROM documents").to_pylist()
    status = {row["doc_id"]: row["status"] for row in found if row["source"] == keeps}
    assert {row["status"] for row in found if row["source"] == rejects} == {"rejected"}
    assert set(status.values()) == {"kept", "duplicate"}
    for doc_id, state in status.items():
        text = output.text(doc_id)
        if state == "kept":
            assert output.tokens(doc_id).tolist()[:-1] == load_tokenizer(encoding).encode(text).tolist()


def test_whole_numbers_of_any_size_are_answers(output: sluice.Output) -> None:
    (row,) = output.sql(f"SELECT {2**64 - 1}::UBIGINT AS h, -{2**100}::HUGEINT AS s, 7 AS n").to_pylist()
    assert row == {"h": 2**64 - 1, "s": -(2**100), "n": 7}


def test_what_was_purged_is_gone_from_every_way_in(crawl: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    sluice.run(crawl / "recipe.toml", [f"run.output={out}"])
    doc_id = next(iter(sluice.open_output(out).texts()))["doc_id"][0].as_py()
    before = sluice.open_output(out)
    text = before.text(doc_id)
    placed = next(table for table in before.placements() if doc_id in table["doc_id"].to_pylist())
    beside = next(other for other in placed["doc_id"].to_pylist() if other != doc_id)
    was = before.text(beside), before.tokens(beside).tolist()
    opened = [sluice.open_output(out) for _ in range(3)]
    plan = sluice.purge(out, docs=[doc_id])
    assert sluice.purge(out, docs=doc_id).documents == plan.documents, "one id is no list of characters"
    assert doc_id in [each.doc_id for each in plan.documents] and sluice.verify(out).purges == ()
    with pytest.raises(ValueError, match="reason is empty"):
        plan.apply(reason=" ", by="me")
    applied = plan.apply(reason="<i>test</i>", by="me")
    assert applied.documents == plan.documents
    assert [row.purge_id for row in sluice.verify(out).purges] == [applied.purge_id]
    for shown in (plan._repr_html_(), applied._repr_html_()):
        assert doc_id in shown and "<i>" not in shown
    after = sluice.open_output(out)
    for read in (after.text, after.tokens, opened[0].text, opened[1].tokens):
        with pytest.raises(PurgedError):
            read(doc_id)
    assert (before.text(beside), before.tokens(beside).tolist()) == was, "its files have other names by now"
    with pytest.raises(ChangedOutputError, match="a purge has made version 2 of it: open it again"):
        list(opened[2].texts())
    assert text not in [row["text"] for table in after.texts() for row in table.to_pylist()]


def test_an_unfinished_output_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFinishedError):
        sluice.open_output(str(tmp_path))


def fed_rows(run: Run) -> list[dict[str, Any]]:
    files = sorted((run.output / "batches").glob("batches-*.parquet"))
    return sorted(
        (row for file in files for row in pq.read_table(file).to_pylist()), key=lambda row: row["sequence"]
    )


def test_sequences_are_those_that_a_training_was_fed(tmp_path: Path) -> None:
    data = make_corpus(str(tmp_path / "out"), {"web": [1700, 530], "books": [1111]}).url
    run = Run(data=data, output=tmp_path / "run", changes={"steps": 12, "record_batches": True})
    run.start()
    rows = fed_rows(run)
    sequences = sluice.Sequences.from_recipe(run.recipe())
    assert len(sequences) == len(rows) > 20
    for row, item in zip(rows, sequences, strict=False):
        assert int(item["sequence"]) == row["sequence"]
        tokens = item["input_ids"][: row["num_tokens"]].numpy().astype(np.uint32)
        assert tokens_hash(tokens).hex() == row["tokens_hash"]
        counted = item["labels"] != IGNORED
        assert (item["labels"][:-1][counted[:-1]] == item["input_ids"][1:][counted[:-1]]).all()


def test_a_loader_with_workers_gives_the_same_batches(tmp_path: Path) -> None:
    data = make_corpus(str(tmp_path / "out"), {"web": [1700, 530], "books": [1111]}).url
    mixture = {"web": 0.5, "books": 0.5}
    sequences = sluice.Sequences(data, seq_len=16, global_batch=4, steps=9, seed=3, mixture=mixture)
    alone = list(DataLoader(sequences, batch_size=4))
    among = list(DataLoader(sequences, batch_size=4, num_workers=2))
    sent = pickle.loads(pickle.dumps(sequences))
    for ours, theirs, other in zip(alone, among, DataLoader(sent, batch_size=4), strict=True):
        assert all((ours[name] == theirs[name]).all() and (ours[name] == other[name]).all() for name in ours)
    assert (sequences[-1]["input_ids"] == alone[-1]["input_ids"][-1]).all()
    with pytest.raises(IndexError, match="sequence 36"):
        _ = sequences[36]
    with pytest.raises(sluice.RecipeError, match="mixture"):
        sluice.Sequences(data, seq_len=16, global_batch=4, steps=9, mixture={"songs": 1.0})


def test_steps_of_a_source_that_names_its_language_judge_by_it(tmp_path: Path) -> None:
    plain = recipe(str(tmp_path / "out"), {"web": ("a.jsonl",)})
    plain["source"][0] |= {"language": "de", "steps": ["parse", "quality"]}
    steps = sluice.Steps(write_recipe(tmp_path / "recipe.toml", plain))
    german, english = (write_article(language, random.Random(1)).text for language in ("de", "en"))
    assert steps(german).is_kept and steps(german).language == "de"
    by = steps(english).decided_by
    assert by is not None and by.rule == "gopher_quality.too_few_stop_words"
    assert pickle.loads(pickle.dumps(steps))(german) == steps(german)
    del plain["source"][0]["language"]
    with pytest.raises(sluice.RecipeError, match=r"source\.language"):
        sluice.Steps(write_recipe(tmp_path / "recipe.toml", plain))


def test_a_tokenizer_of_an_output_gives_ids_that_torch_takes_and_reads_lists(output: sluice.Output) -> None:
    tokenizer = sluice.load_tokenizer(output)
    assert tokenizer.hash == sluice.load_tokenizer(output.url).hash == output.tokenizer.hash
    ids = torch.as_tensor(tokenizer.encode("the boats and the harbour"))
    assert torch.nn.Embedding(tokenizer.vocab_size, 2)(ids).shape == (len(ids), 2)
    torch.nn.functional.cross_entropy(torch.zeros(len(ids), tokenizer.vocab_size), ids)
    for given in (ids, ids.tolist(), ids.numpy()):
        assert tokenizer.decode(given) == "the boats and the harbour"
    assert tokenizer.decode([]) == ""
    with pytest.raises(ValueError, match="has no token 99999999"):
        tokenizer.decode([99_999_999])
    doc_id = output.sql("SELECT doc_id FROM documents WHERE status = 'kept' LIMIT 1")["doc_id"][0].as_py()
    assert torch.as_tensor(output.tokens(doc_id)).dtype == torch.int64


def test_every_way_to_all_texts_gives_the_same_rows_and_hex_ids(output: sluice.Output) -> None:
    rows = [row for table in output.texts() for row in table.to_pylist()]
    assert output.to_pandas()["doc_id"].tolist() == [row["doc_id"] for row in rows]
    assert output.to_datasets().to_list() == rows
    assert list(output.to_datasets(streaming=True)) == rows
    assert set(output.to_datasets("posts")["source"]) == {"posts"}


def test_datasets_that_are_not_installed_are_named_with_their_extra(
    output: sluice.Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'sluice\[hf\]'"):
        output.to_datasets()


def test_a_check_a_scan_and_an_explanation_are_those_of_the_commands(
    crawl: Path, output: sluice.Output, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = sluice.verify(output.url)
    assert found.ok
    assert main(["verify", output.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found.as_json()))
    row = next(output.texts("posts")).to_pylist()[0]
    (tmp_path / "items.jsonl").write_text(json.dumps({"text": row["text"]}) + "\n")
    evidence = sluice.scan(output.url, str(tmp_path / "items.jsonl"), to=str(tmp_path / "scan.json"))
    assert row["doc_id"] in [document.doc_id for document in evidence.documents]
    assert json.loads((tmp_path / "scan.json").read_text()) == json.loads(json.dumps(evidence.to_json()))
    explained = sluice.explain(output.url, doc_id=row["doc_id"], overrides=["quality.min_words=9000"])
    assert explained.deciding is not None
    assert explained.deciding.threshold == 9000
    rules = {
        finding.rule
        for step in sluice.Steps(crawl / "recipe.toml", source="posts").explain("Few.").steps
        for finding in step.findings
    }
    assert "gopher_quality.too_few_words" in rules
    (tmp_path / "note.txt").write_text("Few words.")
    of_file = sluice.explain_file(crawl / "recipe.toml", text=str(tmp_path / "note.txt"))
    assert of_file.deciding is not None
    with pytest.raises(sluice.UnknownError):
        sluice.explain(output.url, doc_id="0" * 32)


def test_an_export_is_recorded_and_found_done(output: sluice.Output, tmp_path: Path) -> None:
    done = sluice.export(output.url, str(tmp_path / "copy"), format="jsonl", address="none")
    assert done.row.num_documents == sum(part.num_rows for part in output.index.dedup)
    again = sluice.export(output.url, str(tmp_path / "copy"), format="jsonl", address="none")
    assert again.was_done and not done.was_done
    with pytest.raises(sluice.RecipeError, match="`format` docx: expected one of"):
        sluice.export(output.url, str(tmp_path / "other"), format="docx")
