"""A run that evaluates itself: in each layout the scores are those of its checkpoint in one process."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineage.recipe import RecipeError, parse_table
from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import VOCAB, make_corpus
from tests.support.processes.forked import ChildFailedError
from tests.support.training.training_runs import Run
from trainer.evaluation.prepared import AboutPrepared, AskedItem, Kind, Prepared, Request, publish_prepared
from trainer.evaluation.result import named_scores
from trainer.evaluation.scanned import HeldSpan, ScannedItems, ScannedOutput, publish_scanned
from trainer.evaluation.scores import score
from trainer.huggingface.evaluated import evaluated
from trainer.huggingface.opened import open_model
from trainer.options import TrainRecipe
from trainer.telemetry.gauges import values
from trainer.telemetry.goodput import read_account
from trainer.telemetry.metrics_file import read_reports
from trainer.telemetry.sinks import Terminal

SEQ_LEN = 32
FILES = ["nowhere.jsonl"]


def asked(kind: Kind, name: str, seed: int = 0) -> Prepared:
    """Random items, some of which take as many tokens as fit."""
    rng = np.random.default_rng(seed)
    items = []
    for size in (1, 5, SEQ_LEN, 7, 20, 3, 12, 30, 9):
        choices = 1 if kind == "text" else 3
        requests = tuple(
            Request(
                choice=choice,
                tokens=rng.integers(0, VOCAB - 1, size + 1).tolist(),
                num_scored=max(1, size // 2),
            )
            for choice in range(choices)
        )
        sizes = tuple(int(num) for num in rng.integers(1, 9, choices))
        items.append(AskedItem(answer=int(rng.integers(choices)), num_bytes=sizes, requests=requests))
    about = AboutPrepared(
        name=name, kind=kind, digest="d", texts=f"texts-{name}", files=tuple(FILES), shots=0, tokenizer="00" * 16,
        seq_len=SEQ_LEN,
    )  # fmt: skip
    return Prepared(about, tuple(items))


PREPARED = {"pages": asked("text", "pages"), "arc": asked("choices", "arc", 1)}
EVALS = [{"name": "pages", "files": FILES, "every": 2}, {"name": "arc", "files": FILES}]
CHANGES: dict[str, Any] = {
    "steps": 4, "eval": EVALS, "checkpoint": {"every": 2, "keep": 9}, "validation": 0.1, "eval_every": 4,
}  # fmt: skip
LAYOUTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "ddp": {"workers": 2, "zero": 0},
    "shard": {"workers": 2},
    "tensor": {"parallel": {"tp": 2}},
    "pipeline": {"parallel": {"pp": 2}},
    "context": {"parallel": {"cp": 2}},
    "ring": {"parallel": {"cp": 2}, "context": {"method": "ring"}},
    "interleaved": {
        "parallel": {"pp": 2, "dp_shard": 2},
        "pipeline": {"schedule": "zbv"},
        "model": "4 layers",
    },
    "experts": {"parallel": {"dp_shard": 2, "ep": 2}, "model": "moe-debug"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [900]}).url


def started(data: str, output: Path, **changes: Any) -> Run:
    run = Run(data=data, output=output, changes=CHANGES | changes)
    for prepared in PREPARED.values():
        publish_prepared(Folder(str(output)), prepared)
    run.start()
    return run


def results(run: Run) -> dict[int, dict[str, Any]]:
    """By step the results of each evaluation."""
    return {
        step: {each["name"]: each for each in row["evaluations"]}
        for step, row in run.metrics().items()
        if "evaluations" in row
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_are_those_of_the_checkpoint_in_one_process(layout: str, data: str, tmp_path: Path) -> None:
    changes = dict(LAYOUTS[layout])
    if changes.get("model") == "4 layers":
        described = json.loads((Path(__file__).parents[3] / "recipes/models/debug.json").read_text())
        (tmp_path / "model.json").write_text(
            json.dumps(described | {"num_hidden_layers": 4, "vocab_size": 256})
        )
        changes["model"] = str(tmp_path / "model.json")
    run = started(data, tmp_path / "run", **changes)
    found = results(run)
    assert {step: set(names) for step, names in found.items()} == {1: {"pages"}, 3: {"pages", "arc"}}
    for step, names in found.items():
        opened = open_model(str(run.output), step=step + 1)
        for name, told in names.items():
            expected = score(PREPARED[name], evaluated(opened, PREPARED[name])).to_json()
            assert {key: told[key] for key in expected} == pytest.approx(expected, abs=1e-9)
            assert told["step"] == step + 1
            assert (told["clean"], told["seen"]) == (None, None)
            assert told["unknown"] == ["the data was not scanned for its items"]


def test_evaluation_changes_no_step_and_is_told_everywhere(
    data: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = started(data, tmp_path / "run")
    without = Run(data=data, output=tmp_path / "without", changes=CHANGES | {"eval": []})
    without.start()
    assert run.losses() == without.losses()
    (last,) = [report for report in read_reports(Folder(str(run.output))) if report.step == 3]
    assert last.evaluation_seconds > 0
    assert read_account(Folder(str(run.output))).at().seconds["evaluation"] >= last.evaluation_seconds
    scores = dict(named_scores(last.evaluations))
    assert set(scores) == {
        "pages/bits_per_byte",
        *(f"arc/{name}" for name in ("bits_per_byte", "accuracy", "accuracy_norm")),
    }
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.output / "tensorboard")).Reload()
    for name, value in scores.items():
        assert events.Scalars(f"evaluation/{name}")[-1].value == pytest.approx(value)
    Terminal(4).write(last)
    assert f"step 3/4  pages bits per byte {scores['pages/bits_per_byte']:.4f}" in capfd.readouterr().err
    assert {
        value.labels["score"]: value.value for value in values(last) if value.name == "evaluation"
    } == scores


def test_what_the_run_has_read_is_counted_step_by_step(data: str, tmp_path: Path) -> None:
    """Each item stands in one place of the data, the third in two; steps that are skipped do not count."""
    spans = [HeldSpan(item, "web", item % 2, 40 * item, 30) for item in range(9)] + [
        HeldSpan(2, "books", 0, 100, 50)
    ]
    scanned = ScannedItems(
        digest="texts-arc", too_short=(8,), outputs=(
            ScannedOutput(out=data, prefix="", content_fingerprint="f", spans=tuple(spans)),
        ),
    )  # fmt: skip
    output = tmp_path / "run"
    publish_scanned(Folder(str(output)), scanned)
    evals = [EVALS[1] | {"every": 1}]
    changes = {"steps": 6, "eval": evals, "faults": {"nan_at_step": [1]}, "validation": 0.0}
    run = started(data, output, **changes)
    assert {step: row["skipped"] for step, row in run.metrics().items()}[1]
    read: dict[int, set[tuple[int, int]]] = {}
    import pyarrow.parquet as pq

    for file in (output / "batches").glob("*.parquet"):
        for row in pq.read_table(file).to_pylist():
            for span in spans:
                inside = (
                    span.start < row["start"] + row["num_tokens"]
                    and row["start"] < span.start + span.num_tokens
                )
                if inside and (row["source"], row["shard"]) == (span.source, span.shard) and row["step"] != 1:
                    read.setdefault(span.item, set()).add((row["step"], row["row"]))
    counts = []
    for step, names in results(run).items():
        until = {item: sorted(row for row in rows if row[0] <= step) for item, rows in read.items()}
        expected = [
            {"item": item, "first_step": rows[0][0], "readings": len(rows)}
            for item, rows in sorted(until.items())
            if rows
        ]
        told = names["arc"]
        assert told["seen"] == expected
        assert told["clean"]["num_items"] == 9 - len(expected)
        assert told["num_too_short"] == 1
        least = min((each["first_step"] for each in expected), default=step + 1)
        saved = [done for done in (2, 4, 6) if done <= step + 1]
        assert told["last_clean_checkpoint"] == max((done for done in saved if done <= least), default=0)
        counts.append(len(expected))
    assert counts[0] < counts[-1]


def test_a_scan_of_other_data_does_not_tell_what_the_run_has_read(data: str, tmp_path: Path) -> None:
    other = ScannedOutput(out=str(tmp_path / "other"), prefix="", content_fingerprint="f", spans=())
    scanned = ScannedItems(digest="texts-arc", too_short=(), outputs=(other,))
    publish_scanned(Folder(str(tmp_path / "run")), scanned)
    run = started(data, tmp_path / "run", eval=[EVALS[1]])
    (told,) = results(run)[3]["arc"]["unknown"]
    assert told == f"{data} was not scanned: `sluice train RECIPE --prepare` does"


def test_a_run_that_goes_on_counts_what_it_had_read_before(data: str, tmp_path: Path) -> None:
    spans = tuple(HeldSpan(item, "web", item % 2, 40 * item, 30) for item in range(9))
    told = []
    for name, stops in (("whole", ()), ("killed", (3,))):
        output = tmp_path / name
        publish_scanned(
            Folder(str(output)),
            ScannedItems(
                digest="texts-arc",
                too_short=(),
                outputs=(ScannedOutput(out=data, prefix="", content_fingerprint="f", spans=spans),),
            ),
        )
        for prepared in PREPARED.values():
            publish_prepared(Folder(str(output)), prepared)
        run = Run(data=data, output=output, changes=CHANGES | {"steps": 6})
        for after in stops:
            run.start_and_kill(after)
        run.start()
        told.append(results(run)[5]["arc"])
    assert told[0] == told[1]
    assert told[0]["seen"]


def test_what_is_not_prepared_is_refused(data: str, tmp_path: Path) -> None:
    run = Run(data=data, output=tmp_path / "run", changes=CHANGES)
    with pytest.raises(ChildFailedError, match=r"'pages' is not prepared .*sluice train RECIPE --prepare"):
        run.start()
    publish_prepared(Folder(str(run.output)), PREPARED["pages"])
    others: dict[str, tuple[Any, str]] = {"shots": (2, "0"), "shots_from": ("dev.jsonl", "None")}
    for name, (value, own) in others.items():
        about = dataclasses.replace(PREPARED["arc"].about, **{name: value})
        publish_prepared(Folder(str(run.output)), Prepared(about, PREPARED["arc"].items))
        told = f"'arc' was prepared with {name} = {value!r}, and this run has {own}"
        with pytest.raises(ChildFailedError, match=told):
            run.start()


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([{"name": "a b", "files": FILES}], r"train\.eval\.name = 'a b': expected letters"),
        ([{"name": "a", "files": []}], r"train\.eval\.files = \[\] of a: expected at least one"),
        ([{"name": "a", "files": FILES}] * 2, r"names \['a', 'a'\]: expected a name of its own"),
        (
            [{"name": "a", "files": FILES, "shots_from": "b"}],
            "shots_from of a: expected train.eval.shots above 0",
        ),
        ([{"name": "a", "files": FILES, "field": "x"}], r"train\.eval\[0\]\.field"),
    ],
)
def test_a_table_that_is_wrong_is_refused(entries: list[dict[str, Any]], told: str, tmp_path: Path) -> None:
    table = {
        "data": "d",
        "output": str(tmp_path),
        "model": "debug",
        "seq_len": 8,
        "global_batch": 1,
        "steps": 1,
    }
    with pytest.raises(RecipeError, match=told):
        parse_table(TrainRecipe, {"run": {"name": "r"}, "train": table | {"eval": entries}})
