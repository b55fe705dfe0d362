"""What training runs read of a benchmark's items: steps are those that the record of batches has."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from lineage.trace.exposure import Exposure
from pipeline.cli.main import main
from pipeline.inspect.scan.scanned_runs import rows_of_items
from stages.tokens.tokenizer import load_tokenizer, train_bpe
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run
from tests.support.training.training_runs import Run

NUM_ITEMS = 6
EVERY = 4


def words(rng: random.Random, num: int) -> str:
    return " ".join("".join(rng.choices("abcdefghij", k=rng.randint(2, 6))) for _ in range(num))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An output whose documents hold items of a benchmark, and a run over it that recorded its batches."""

    folder: Path
    texts: dict[str, str]
    held: dict[str, tuple[int, str]]
    """By the URL of a document, the item that it holds and how it stands there."""
    trained: Run

    @property
    def out(self) -> Folder:
        return Folder(str(self.folder / "out"))

    def scan(self, *options: str) -> dict[str, Any]:
        """What `sluice scan --runs` writes."""
        files = [str(self.folder / name) for name in ("bench.jsonl", "known.jsonl")]
        against = [part for file in files for part in ("--against", file)]
        call = [
            "scan",
            self.out.url,
            *against,
            "--to",
            str(self.folder / "scan.json"),
            "--max-share",
            "1",
            *options,
        ]
        assert main(call) == 0
        found: dict[str, Any] = json.loads((self.folder / "scan.json").read_text())
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("scanned")
    rng = random.Random(7)
    items = [words(rng, 20) for _ in range(NUM_ITEMS + 1)]
    wrapped = "\n".join(" ".join(items[2].split()[at : at + 8]) for at in (0, 8, 16))
    planted = [(0, items[0]), (0, items[0]), (1, items[1].upper()), (2, wrapped), (3, items[3])]
    texts, held = {}, {}
    for number in range(24):
        url = f"https://a.example/{number}"
        parts = [words(rng, rng.randint(30, 200)) for _ in range(2)]
        if number < len(planted):
            held[url] = planted[number]
            parts.insert(1, planted[number][1])
        if number == 23:
            parts.insert(1, items[NUM_ITEMS])
        texts[url] = " ".join(parts)
    rows = [{"id": url, "url": url, "text": text} for url, text in texts.items()]
    (folder / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "bench.jsonl").write_text(
        "".join(json.dumps({"text": item}) + "\n" for item in items[:NUM_ITEMS])
    )
    (folder / "known.jsonl").write_text("\n" + json.dumps({"text": items[NUM_ITEMS]}))
    (folder / "few.tiktoken").write_bytes(train_bpe(texts.values(), 400))
    plain = recipe(
        str(folder / "out"),
        {"web": (str(folder / "docs.jsonl"),)},
        ray={"address": "none"},
        tokenize={"encoding": str(folder / "few.tiktoken")},
        decontaminate={"against": [str(folder / "known.jsonl")]},
    )
    plain["source"][0]["steps"] = ["parse", "decontaminate"]
    run(folder, plain)
    changes = {
        "seq_len": 64,
        "global_batch": 16,
        "micro_batch": 8,
        "steps": 16,
        "dtype": "float32",
        "faults": {"nan_at_step": [1]},
    }
    changes["checkpoint"] = {"every": EVERY, "keep": 10}
    trained = Run(data=str(folder / "out"), output=folder / "run", changes=changes)
    trained.start()
    return World(folder=folder, texts=texts, held=held, trained=trained)


def recorded_readings(world: World) -> dict[int, set[tuple[int, int]]]:
    """By item the (step, row) that read any of its tokens, by the record of batches."""
    out, tokenizer = world.out, load_tokenizer(str(world.folder / "few.tiktoken"))
    spans = {}
    for url, (item, way) in world.held.items():
        ((source, shard, start),) = query(
            out,
            f"SELECT source, shard, start FROM documents WHERE url = '{url}'",
        ).rows
        text, at = world.texts[url], world.texts[url].index(way)
        tokens = tokenizer.encode(text)
        reach = [len(tokenizer.decode(tokens[:end])) for end in range(len(tokens) + 1)]
        first = max(end for end in range(len(reach)) if reach[end] <= at)
        last = min(end for end in range(len(reach)) if reach[end] >= at + len(way))
        spans.setdefault(item, []).append((source, shard, int(str(start)) + first, int(str(start)) + last))
    found: dict[int, set[tuple[int, int]]] = {item: set() for item in spans}
    for file in (world.trained.output / "batches").glob("*.parquet"):
        for row in pq.read_table(file).to_pylist():
            for item, places in spans.items():
                for source, shard, first, last in places:
                    inside = first < row["start"] + row["num_tokens"] and row["start"] < last
                    if inside and (row["source"], row["shard"]) == (source, shard):
                        found[item].add((row["step"], row["row"]))
    return found


@pytest.mark.parametrize("ngram", ["13w", "8t"])
def test_steps_are_those_that_the_batches_recorded(ngram: str, world: World) -> None:
    evidence = world.scan("--runs", "--ngram", ngram)
    (seen,) = evidence["runs"]
    truth = recorded_readings(world)
    assert sum(map(len, truth.values())) > len(truth), "some item is read more than once"
    skipped = {step for step, row in world.trained.metrics().items() if row["skipped"]}
    assert skipped == {1}
    assert {item["item"] for item in seen["items"]} == {item for item, rows in truth.items() if rows}
    for item in seen["items"]:
        rows = truth[item["item"]]
        steps = sorted(step for step, _ in rows if step not in skipped)
        assert (item["num_readings"], item["num_undone"]) == (len(steps), len(rows) - len(steps))
        assert (item["first_step"], item["last_step"]) == (steps[0], steps[-1])
        assert item["last_clean_checkpoint"] == steps[0] // EVERY * EVERY
    assert seen["checkpoints"] == [4, 8, 12, 16]
    bench, known = seen["benchmarks"]
    read = [item for item in seen["items"] if item["first_step"] is not None]
    assert (bench["num_items"], bench["num_found"], bench["num_read"]) == (NUM_ITEMS, 4, len(read))
    assert bench["first_step"] == min(item["first_step"] for item in read)
    assert (bench["was_checked"], known["was_checked"]) == (False, True)
    assert (known["num_found"], known["first_step"], known["last_clean_checkpoint"]) == (0, None, None)


def test_a_row_that_counts_is_not_undone_by_another_attempt_that_read_the_item_elsewhere() -> None:
    # The two copies of item 0: after the run went back, with another mixture, row 5 read the one and not the other.
    undone, counted = (
        Exposure(
            run="r",
            attempt=attempt,
            step=9,
            row=5,
            epoch=0,
            sequence=77,
            first_token=0,
            num_tokens=8,
            applied=applied,
        )
        for attempt, applied in ((1, False), (2, True))
    )
    for rows in ([(counted,), (undone,)], [(undone,), (counted,)]):
        assert rows_of_items([0, 0], rows) == {"r": {0: {(9, 5): True}}}
    assert rows_of_items([0, 1], [(counted,), (undone,)])["r"][1] == {(9, 5): False}


def test_the_table_stands_in_what_is_printed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = world.scan("--runs", str(world.trained.output))
    printed = capsys.readouterr().out
    (bench, _) = evidence["runs"][0]["benchmarks"]
    line = next(line for line in printed.splitlines() if "bench.jsonl |" in line)
    assert f"| 6 | 4 | {bench['num_read']} | {bench['num_readings']} | {bench['first_step']} |" in line
    assert "| all | yes |" in next(line for line in printed.splitlines() if "known.jsonl |" in line)


def test_a_run_that_is_not_there_is_named(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [
        "scan",
        world.out.url,
        "--against",
        str(world.folder / "bench.jsonl"),
        "--to",
        str(tmp_path / "s.json"),
    ]
    assert main([*call, "--runs", str(tmp_path)]) == 1
    assert f"no lineage.jsonl in {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "s.json").exists()


def test_what_was_turned_down_names_its_item(world: World) -> None:
    rows = query(world.out, "SELECT url, rule, matched FROM documents WHERE status = 'rejected'").rows
    assert [tuple(row) for row in rows] == [
        ("https://a.example/23", "decontaminate.overlap", "known.jsonl:2")
    ]


def test_a_run_says_against_which_benchmarks_its_data_was_checked(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", world.out.url, "--runs", str(world.trained.output), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    (known,) = told["checked_against"]
    evidence = world.scan()
    assert evidence["runs"] is None
    assert (known["file"], known["digest"]) == (
        str(world.folder / "known.jsonl"),
        evidence["benchmarks"][1]["digest"],
    )
    assert (known["out"], known["sources"], known["ngram"]) == (world.out.url, ["web"], "13w")
    assert main(["trace", world.out.url, "--runs", str(world.trained.output)]) == 0
    assert (
        f"data checked against {known['file']} ({known['digest']}, 13w, ratio 0.5)" in capsys.readouterr().out
    )
