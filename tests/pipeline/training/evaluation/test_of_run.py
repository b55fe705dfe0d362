"""`sluice train` with evaluations: files are tokenized and the data is scanned before the run, and once only."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from pipeline.page.views.runs import metrics_of
from tests.support.outputs.runs import write_recipe
from tests.support.training.scored_world import make_out, questions, text, write_rows

NUM_HELD = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data that holds some questions with their answers."""
    folder, rng = tmp_path_factory.mktemp("of_run"), random.Random(1)
    asked = questions(rng, 12, 14)
    texts = [text(rng, 200) for _ in range(30)]
    for number in range(NUM_HELD):
        held = asked[number]
        texts[number * 7] += f" {held['question']} {held['choices'][held['answer']]} {text(rng, 100)}"
    write_rows(folder / "bench.jsonl", asked)
    write_rows(folder / "pages.jsonl", [{"text": text(rng, 150)} for _ in range(5)])
    make_out(folder, texts)
    return folder


def recipe(folder: Path, run: str, **changes: Any) -> str:
    evals = [
        {"name": "bench", "files": [str(folder / "bench.jsonl")], "shots": 1, "every": 2},
        {"name": "pages", "files": [str(folder / "pages.jsonl")], "scan": False},
    ]
    table = {
        "data": str(folder / "out"), "output": str(folder / run), "model": "debug", "seq_len": 256, "global_batch": 8,
        "steps": 4, "optimizer": {"lr": 1e-2}, "checkpoint": {"every": 2, "keep": 9}, "eval": evals,
    }  # fmt: skip
    plain = {"run": {"name": run}, "train": table | changes, "ray": {"address": "none"}}
    return str(write_recipe(folder / f"{run}.toml", plain))


def evaluations(folder: Path, run: str) -> dict[tuple[int, str], dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    return {(each["step"], each["name"]): each for row in rows for each in row.get("evaluations", ())}


def test_a_run_evaluates_itself_as_eval_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = recipe(folder, "run")
    assert main(["train", file]) == 0
    told = capsys.readouterr().err
    assert f"Evaluation bench: 12 items, of which the data holds {NUM_HELD}" in told
    assert "Evaluation pages: 5 items\n" in told
    found = evaluations(folder, "run")
    assert set(found) == {(2, "bench"), (4, "bench"), (4, "pages")}
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / "run" / "evaluations").iterdir()}
    for step in (2, 4):
        call = [
            "eval",
            str(folder / "run"),
            "--on",
            str(folder / "bench.jsonl"),
            "--shots",
            "1",
            "--step",
            str(step),
        ]
        assert main([*call, "--json"]) == 0
        once_more = json.loads(capsys.readouterr().out)
        assert once_more.pop("read").endswith(f"step-{step:08d}.attempt-1")
        for name, value in found[step, "bench"].items():
            assert once_more[name] == (
                pytest.approx(value, abs=1e-5) if isinstance(value, (float, dict)) else value
            )
    assert found[4, "bench"]["seen"], "some item was read"
    assert found[4, "pages"]["unknown"] == ["the data was not scanned for its items"]
    # The scan of the run serves the command, and nothing is made twice.
    assert main(["train", recipe(folder, "run", steps=6)]) == 0
    assert kept == {path.name: path.stat().st_mtime_ns for path in (folder / "run" / "evaluations").iterdir()}
    assert (6, "bench") in evaluations(folder, "run")


def test_the_page_of_a_run_shows_its_evaluations(folder: Path) -> None:
    if not (folder / "run" / "metrics.jsonl").exists():
        assert main(["train", recipe(folder, "run")]) == 0
    shown = metrics_of(str(folder / "run")).evaluations
    assert [one.step for one in shown] == sorted((one.step or 0 for one in shown), reverse=True)
    assert {one.name for one in shown} == {"bench", "pages"}


def test_torchrun_s_processes_find_what_prepare_has_made(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe(folder, "prepared")
    assert main(["train", file, "--prepare", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"prepared": ["bench", "pages"]}
    assert {path.suffix for path in (folder / "prepared" / "evaluations").iterdir()} == {".parquet", ".json"}
    assert not (folder / "prepared" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"name": "bench", "files": ["bench.jsonl"], "shots": 12}, "train.eval: 12 shots: .* has 12 items"),
        (
            {"name": "bench", "files": ["bench.jsonl"], "shots": 9},
            "train.eval: .*line 1: the question .* at most 257",
        ),
        (
            {"name": "bench", "files": ["bench.jsonl"], "kind": "text"},
            "train.eval: .*bench.jsonl line 1 has 'question'",
        ),
        ({"name": "bench", "files": ["nowhere.jsonl"]}, "train.eval: '.*nowhere.jsonl' cannot be read"),
    ],
)
def test_what_cannot_be_asked_is_told_before_the_run(
    entry: dict[str, Any], told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = entry | {"files": [str(folder / file) for file in entry["files"]]}
    assert main(["train", recipe(folder, "wrong", eval=[whole])]) == 2
    import re

    assert re.search(told, capsys.readouterr().err)
    assert not (folder / "wrong" / "metrics.jsonl").exists()


def test_what_a_run_recorded_is_printed_and_written_as_a_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (folder / "run" / "metrics.jsonl").exists():
        assert main(["train", recipe(folder, "run")]) == 0
    capsys.readouterr()
    run, page = str(folder / "run"), tmp_path / "eval.html"
    assert main(["eval", run, "--json", "--to", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {(each["step"], each["name"]): each for each in told} == {
        key: each | {"read": run} for key, each in evaluations(folder, "run").items()
    }
    text = page.read_text()
    assert f"{told[-1]['bits_per_byte']:.4f}" in text
    assert "Items that it had read" in text
    assert main(["eval", run, "--step", "2"]) == 0
    assert capsys.readouterr().out.count(", 2 steps\n") == 1
    for call, message in (
        (["--step", "3"], "--step 3: the run evaluated itself after steps 2, 4"),
        (["--shots", "1"], "--shots goes with --on FILE"),
        (["--to", "page.txt"], "--to 'page.txt': expected a name that ends in .html"),
    ):
        assert main(["eval", run, *call]) == 2
        assert message in capsys.readouterr().err
    assert main(["eval", str(folder / "out")]) == 2
    assert "is not the output of a training run: --on FILE" in capsys.readouterr().err
