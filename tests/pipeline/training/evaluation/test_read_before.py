"""What a model had read of an evaluation: items planted into known documents, counted by the record of batches."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.export.checkpoint import export_checkpoint
from pipeline.training.evaluation.formats import read_evaluation
from pipeline.training.evaluation.prepare import EvaluationSet, prepare
from pipeline.training.opened import open_text_model
from tests.support.outputs.lineage_query import query
from tests.support.training.scored_world import make_out, write_rows
from tests.support.training.training_runs import Run
from trainer.evaluation.scores import score
from trainer.huggingface.evaluated import evaluated

NUM_FIRST, NUM_PLANTED, NUM_CLEAN, EVERY, SKIPPED = 20, 25, 10, 4, 2
"""Items in documents of the first output, of both, and of none."""


def words(rng: random.Random, num: int) -> str:
    return " ".join("".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(num))


@dataclass(frozen=True)
class World:
    """Two outputs of data runs with questions in some documents, a run over the first, and one over the second that
    began with a checkpoint of it. `planted`: by output and number of the document, the item in it."""

    folder: Path
    questions: list[dict[str, Any]]
    planted: dict[str, dict[int, int]]
    texts: dict[str, list[str]]
    first: Run
    second: Run

    @cached_property
    def file(self) -> Path:
        return write_rows(self.folder / "bench.jsonl", self.questions)

    def evaluated(self, place: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        call = ["eval", str(place), "--on", str(self.file), "--json", *options]
        assert main([*call, "--tokenizer", str(self.folder / "own.tiktoken")]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    def readings(self, run: Run, name: str) -> dict[int, set[tuple[int, int]]]:
        """By item the (step, row) that read any of its tokens and were not skipped, by the record of batches."""
        out, spans = Folder(str(self.folder / name)), dict[int, list[tuple[str, int, int, int]]]()
        tokenizer = open_text_model(
            str(run.output), tokenizer=str(self.folder / "own.tiktoken")
        ).text.tokenizer
        for number, item in self.planted[name].items():
            sql = f"SELECT source, shard, start FROM documents WHERE record_id = '{name}/{number}'"
            ((source, shard, start),) = query(out, sql).rows
            whole, asked = self.texts[name][number], said(self.questions[item])
            tokens = tokenizer.encode(whole)
            ends = [len(tokenizer.decode(tokens[:end])) for end in range(len(tokens) + 1)]
            at = whole.index(asked)
            first = max(end for end, reach in enumerate(ends) if reach <= at)
            last = min(end for end, reach in enumerate(ends) if reach >= at + len(asked))
            spans.setdefault(item, []).append((source, shard, start + first, start + last))
        skipped = {step for step, row in run.metrics().items() if row["skipped"]}
        found: dict[int, set[tuple[int, int]]] = {}
        for file in (run.output / "batches").glob("*.parquet"):
            for row in pq.read_table(file).to_pylist():
                for item, places in spans.items():
                    for source, shard, first, last in places:
                        inside = first < row["start"] + row["num_tokens"] and row["start"] < last
                        if (
                            inside
                            and (row["source"], row["shard"]) == (source, shard)
                            and row["step"] not in skipped
                        ):
                            found.setdefault(item, set()).add((row["step"], row["row"]))
        return found


def said(question: dict[str, Any]) -> str:
    """How an item stands in a document: with its right answer."""
    return f"{question['question']} {question['choices'][question['answer']]}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder, rng = tmp_path_factory.mktemp("read"), random.Random(3)
    asked = [
        {"question": words(rng, 16), "choices": [words(rng, 3) for _ in range(3)], "answer": rng.randrange(3)}
        for _ in range(NUM_PLANTED + NUM_CLEAN)
    ]
    planted: dict[str, dict[int, int]] = {"out": {}, "more": {}}
    texts: dict[str, list[str]] = {"out": [], "more": []}
    for name, items, num in (("out", range(NUM_FIRST), 50), ("more", range(15, NUM_PLANTED), 30)):
        # An item each, and one of them twice.
        for number, item in enumerate([*items, items[0]]):
            planted[name][number * 2] = item
        for number in range(num):
            parts = [words(rng, rng.randint(40, 120)) for _ in range(2)]
            if number in planted[name]:
                parts.insert(1, said(asked[planted[name][number]]))
            texts[name].append(" ".join(parts))
    outs = {name: make_out(folder, each, name) for name, each in texts.items()}
    changes: dict[str, Any] = {
        "seq_len": 256, "global_batch": 8, "micro_batch": 8, "steps": 24, "dtype": "float32",
        "faults": {"nan_at_step": [SKIPPED]}, "checkpoint": {"every": EVERY, "keep": 9},
    }  # fmt: skip
    first = Run(data=outs["out"], output=folder / "first", changes=changes)
    first.start()
    begun = changes | {
        "init_from": str(folder / "first" / "checkpoints" / "step-00000008.attempt-1"),
        "steps": 8,
    }
    second = Run(data=outs["more"], output=folder / "second", changes=begun | {"faults": {}})
    second.start()
    return World(folder, asked, planted, texts, first, second)


def scores_by_hand(
    world: World, place: Path, step: int, seen: set[int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """On all items and on the rest, from the losses of one by one."""
    model = open_text_model(str(place), step=step, tokenizer=str(world.folder / "own.tiktoken"))
    items = read_evaluation([str(world.file)])
    asked = EvaluationSet(name="bench", files=(str(world.file),))
    both = []
    for chosen in (items, [item for number, item in enumerate(items) if number not in seen]):
        nats = []
        for item in chosen:
            nats += evaluated(model.opened, prepare(asked, [item], model.text, 256))
        both.append(score(prepare(asked, chosen, model.text, 256), [np.array(one) for one in nats]).to_json())
    return both[0], both[1]


@pytest.mark.parametrize("step", [4, 24])
def test_items_that_were_read_are_those_of_the_batches(
    step: int, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    found = world.evaluated(world.first.output, "--step", str(step), capsys=capsys)
    truth = {
        item: sorted(row for row in rows if row[0] < step)
        for item, rows in world.readings(world.first, "out").items()
        if any(row[0] < step for row in rows)
    }
    assert truth, "some item was read by then"
    assert found["seen"] == [
        {"item": item, "first_step": rows[0][0], "readings": len(rows)}
        for item, rows in sorted(truth.items())
    ]
    least = min(rows[0][0] for rows in truth.values())
    assert found["last_clean_checkpoint"] == least // EVERY * EVERY
    assert (found["step"], found["num_items"], found["num_too_short"]) == (step, NUM_PLANTED + NUM_CLEAN, 0)
    whole, clean = scores_by_hand(world, world.first.output, step, set(truth))
    assert clean["num_items"] < whole["num_items"]
    for name, value in whole.items():
        assert found[name] == pytest.approx(value, abs=1e-6)
    assert found["clean"] == pytest.approx(clean, abs=1e-6)


def test_all_that_was_planted_is_found_in_the_end(world: World) -> None:
    assert set(world.readings(world.first, "out")) == set(range(NUM_FIRST))


def test_a_run_counts_what_the_weights_it_began_with_had_read(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    found = world.evaluated(world.second.output, capsys=capsys)
    before = {
        item: {row for row in rows if row[0] < 8} for item, rows in world.readings(world.first, "out").items()
    }
    before = {item: rows for item, rows in before.items() if rows}
    own = world.readings(world.second, "more")
    assert before.keys() & own.keys()
    expected = []
    for item in sorted(before.keys() | own.keys()):
        rows = before.get(item) or own[item]
        row = {
            "item": item,
            "first_step": min(rows)[0],
            "readings": len(before.get(item, ())) + len(own.get(item, ())),
        }
        expected.append(row | ({"run": str(world.first.output)} if item in before else {}))
    assert found["seen"] == expected
    assert found["last_clean_checkpoint"] is None
    assert found["unknown"] == []


def test_each_output_counts_where_several_have_no_prefix(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    third = make_out(world.folder, world.texts["more"], "third", source="posts")
    world = replace(
        world,
        planted=world.planted | {"third": world.planted["more"]},
        texts=world.texts | {"third": world.texts["more"]},
    )
    outs = [{"out": third}, {"out": str(world.folder / "out")}]
    run = replace(world.first, output=world.folder / "both", changes=world.first.changes | {"data": outs})
    run.start(steps=12)
    assert world.evaluated(run.output, capsys=capsys)["num_items"] == NUM_PLANTED + NUM_CLEAN
    number, item = next((at, item) for at, item in world.planted["third"].items() if item >= NUM_FIRST)
    sql = f"SELECT doc_id FROM documents WHERE record_id = 'third/{number}'"
    ((doc_id,),) = query(Folder(third), sql).rows
    assert main(["purge", third, "--doc", doc_id, "--reason", "asked", "--by", "us", "--apply"]) == 0
    capsys.readouterr()
    run.start()
    truth = world.readings(run, "out")
    for each, rows in world.readings(run, "third").items():
        read = {row for row in rows if each != item or row[0] < 12}
        truth[each] = truth.get(each, set()) | read
    assert truth.pop(item) == set()  # every step that would have read it came behind the purge
    assert world.evaluated(run.output, capsys=capsys)["seen"] == [
        {"item": each, "first_step": min(rows)[0], "readings": len(rows)}
        for each, rows in sorted(truth.items())
    ]


def test_an_export_knows_what_its_checkpoint_had_read(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = str(world.folder / "own.tiktoken")
    export_checkpoint(Folder(str(world.first.output)), str(tmp_path / "hf"), step=8, tokenizer=tokenizer)
    of_run = world.evaluated(world.first.output, "--step", "8", capsys=capsys)
    of_folder = world.evaluated(tmp_path / "hf", capsys=capsys)
    for name in ("seen", "step", "last_clean_checkpoint"):
        assert of_folder[name] == of_run[name]
    assert of_folder["bits_per_byte"] == pytest.approx(of_run["bits_per_byte"], abs=1e-6)
    (tmp_path / "hf" / "sluice.json").unlink()
    unknown = world.evaluated(tmp_path / "hf", capsys=capsys)
    assert (unknown["seen"], unknown["clean"], unknown["step"]) == (None, None, None)
    assert "nothing says which run made its weights" in unknown["unknown"][0]


def test_data_that_is_gone_is_told(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_rows(tmp_path / "other.jsonl", world.questions[:20])
    (world.folder / "out").rename(world.folder / "gone")
    try:
        tokenizer = str(world.folder / "own.tiktoken")
        assert main(["eval", str(world.first.output), "--on", str(other), "--tokenizer", tokenizer]) == 0
    finally:
        (world.folder / "gone").rename(world.folder / "out")
    assert "not known: " in (shown := capsys.readouterr().out)
    assert "out cannot be scanned" in shown
