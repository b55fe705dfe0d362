"""Why a step came out as it did: documents by their losses, and hardware told from data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.cli.training.why import why_json
from stages.tokens.tokenizer import load_tokenizer, train_bpe
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.outputs.small_out.records import make_records
from tests.support.processes.forked import run_forked
from tests.support.training.forgotten import Trained, copy_out
from tests.support.training.replayed import Flip, replays, train_with_a_flipped_bit
from trainer.evidence.replayed_step import step_to_replay
from trainer.evidence.why import WhyStep, explain_step
from trainer.recovery.back import go_back_to

STEPS: Mapping[str, Any] = {"record_losses": True, "checkpoint": {"every": 4, "keep": 10}}


def why(trained: Trained, step: int, *, flips: bool = False) -> WhyStep:
    output = trained.run.output
    return explain_step(
        step_to_replay(Folder(str(output)), step), replays(trained.folder / "replays", flips=flips)
    )


@pytest.fixture(scope="module")
def trained(small: SmallOut, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    mine = Trained(small=small, folder=tmp_path_factory.mktemp("why"), changes={**STEPS, "workers": 2})
    copy_out(small, mine.folder)
    assert mine.run.start().finished
    return mine


def test_a_replay_gives_every_number_again_and_leaves_the_run_as_it_is(trained: Trained) -> None:
    files = {path: path.stat().st_mtime_ns for path in trained.run.output.rglob("*") if path.is_file()}
    found = why(trained, 6)
    assert {
        path: path.stat().st_mtime_ns for path in trained.run.output.rglob("*") if path.is_file()
    } == files
    assert (found.verdict.cause, found.replayed_from, found.num_replayed) == (
        "data",
        "step-00000004.attempt-1",
        3,
    )
    recorded = trained.run.metrics()[6]
    assert (found.loss, found.recorded_loss, found.gradient_norm) == (recorded["loss"],) * 2 + (
        recorded["grad_norm"],
    )
    assert list(found.layers) == ["embed_tokens", "layers.0", "layers.1", "norm"]
    fed = {row: sequence for row, sequence, _ in trained.run.sequences()[6]}
    assert {row.row: row.sequence for row in found.rows} == fed
    num = sum(row.num_labels for row in found.rows)
    assert sum(row.loss * row.num_labels for row in found.rows) / num == pytest.approx(
        recorded["loss"], rel=1e-12
    )
    # Documents are parts of rows, and have the ids that trace has.
    assert sum(one.num_labels for one in found.documents) == num
    assert sum(one.loss * one.num_labels for one in found.documents) / num == pytest.approx(
        recorded["loss"], rel=1e-6
    )  # of float32
    placed = {record.doc_id.hex(): record.url for record in trained.small.records if record.status == "kept"}
    assert all(one.doc_id in placed and one.url == placed[one.doc_id] for one in found.documents)
    assert [one.excess for one in found.documents] == sorted(
        (one.excess for one in found.documents), reverse=True
    )


def test_a_run_without_an_early_checkpoint_is_replayed_from_its_first_weights(trained: Trained) -> None:
    found = why(trained, 2)
    assert (found.verdict.cause, found.replayed_from, found.num_replayed) == ("data", None, 3)


def test_a_run_of_two_workers_without_ray_is_replayed_without_ray(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "why", str(trained.run.output), "--step", "6", "--json"]) == 0
    printed = capsys.readouterr()
    assert "in 2 processes of this machine" in printed.err
    assert json.loads(printed.out) == why_json(why(trained, 6)) | {"page": None}
    copy = shutil.copytree(trained.run.output, tmp_path / "copy")
    piece = copy / "checkpoints/step-00000004.attempt-1/__1_0.distcp"
    piece.write_bytes(piece.read_bytes()[:-1] + b"?")
    assert main(["train", "why", str(copy), "--step", "6"]) == 0
    shown = capsys.readouterr().out
    assert "__1_0.distcp has other bytes than when it was published; the replay began before it" in shown


def test_hardware_that_computes_wrongly_each_time_is_persistent(trained: Trained) -> None:
    verdict = why(trained, 6, flips=True).verdict
    assert (verdict.cause, verdict.duration, verdict.first_step) == ("hardware", "persistent", 6)
    assert "a second replay disagrees with the first" in verdict.why


def test_what_is_no_proof_is_not_called_hardware(trained: Trained, tmp_path: Path) -> None:
    mine = replace(trained, folder=tmp_path)
    shutil.copytree(trained.out.url, mine.out.url)
    assert mine.run.start().finished
    before = why(mine, 6)
    mine.purge(next(r for r in mine.small.records if r.doc_id.hex() == before.documents[0].doc_id))
    verdict = why(mine, 6).verdict
    assert (verdict.cause, verdict.duration) == ("unknown", None)
    assert "has another content than these steps read, as after a purge" in verdict.why


def test_a_step_that_was_undone_is_replayed_from_a_checkpoint_that_led_to_it(
    trained: Trained, tmp_path: Path
) -> None:
    mine = replace(trained, folder=tmp_path, changes={**STEPS, "workers": 1})
    shutil.copytree(trained.out.url, mine.out.url)
    assert mine.run.start().finished
    other = {"optimizer": {"lr": 1e-3, "warmup_steps": 3}}
    go_back_to(mine.run.recipe(other), 4)
    mine.run.start_and_kill(9, **other)
    assert "step-00000008.attempt-2" in mine.run.checkpoints()
    undone, again = why(mine, 9), why(mine, 8)
    assert (undone.attempt, undone.replayed_from, undone.num_replayed) == (1, "step-00000004.attempt-1", 6)
    assert (again.attempt, again.replayed_from) == (2, "step-00000008.attempt-2")
    assert (undone.verdict.cause, again.verdict.cause) == ("data", "data")


def test_steps_of_two_attempts_with_other_recipes_prove_nothing_of_the_hardware(
    trained: Trained, tmp_path: Path
) -> None:
    changes = {"record_losses": True, "workers": 1, "checkpoint": {"every": 4, "keep": 1}}
    mine = replace(trained, folder=tmp_path, changes=changes)
    shutil.copytree(trained.out.url, mine.out.url)
    mine.run.start_and_kill(5)
    assert mine.run.start(optimizer={"lr": 1e-3, "warmup_steps": 3}).finished
    found = why(mine, 6)
    assert (found.replayed_from, found.num_replayed, found.verdict.cause) == (None, 7, "unknown")
    assert "train.optimizer.lr is 0.001 now and was 0.003 in attempt 1" in found.verdict.why


def test_a_wrong_call_is_refused_in_a_sentence(trained: Trained, tmp_path: Path) -> None:
    output = Folder(str(trained.run.output))
    with pytest.raises(RecipeError, match=r"--step 99: steps 0 to 9 are recorded, in metrics.jsonl of"):
        step_to_replay(output, 99)
    with pytest.raises(RecipeError, match="is not the output of a training run"):
        step_to_replay(Folder(str(tmp_path)), 1)
    recipe = (
        output.path("attempts/00001.toml")
        if hasattr(output, "path")
        else trained.run.output / "attempts/00001.toml"
    )
    kept = Path(recipe).read_bytes()
    Path(recipe).unlink()
    try:
        with pytest.raises(RecipeError, match="the recipe or the setup of attempt 1 is no more in"):
            step_to_replay(output, 6)
    finally:
        recipe.write_bytes(kept)


def flipped(small: SmallOut, folder: Path, flip: Flip, changes: Mapping[str, Any]) -> Trained:
    """A run in which a bit of one rank's weights became another."""
    mine = Trained(small=small, folder=folder, changes={**STEPS, **changes})
    copy_out(small, folder)
    recipe = mine.run.recipe()
    run_forked(mine.run.scratch, recipe.train.num_workers, partial(train_with_a_flipped_bit, recipe, flip))
    return mine


def assert_named(small: SmallOut, folder: Path, flip: Flip, changes: Mapping[str, Any]) -> None:
    verdict = why(flipped(small, folder, flip, changes), 7).verdict
    assert (verdict.cause, verdict.duration, verdict.first_step) == ("hardware", "transient", flip.step)
    assert verdict.ranks == (flip.rank,), verdict.why


def test_a_flipped_bit_in_a_replica_is_hardware_and_its_rank_is_named(
    small: SmallOut, tmp_path: Path
) -> None:
    assert_named(small, tmp_path, Flip(1, 5, 24), {"workers": 2, "zero": 0})


UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.norm.weight"
BITS = ((21, NORM), (27, "model.embed_tokens.weight"), (23, NORM), (25, UP), (26, UP))
"""Such as show in the losses of the rank's rows at once."""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_a_flipped_bit_is_hardware_in_each_of_ten(number: int, small: SmallOut, tmp_path: Path) -> None:
    workers = 2 + number % 3
    bit, weight = BITS[number % 5]
    flip = Flip(number % workers, 4 + number % 4, bit, weight)
    assert_named(small, tmp_path, flip, {"workers": workers, "zero": 0, "global_batch": 12})


@pytest.mark.slow
def test_a_flipped_bit_in_a_shard_is_hardware_of_no_named_rank(small: SmallOut, tmp_path: Path) -> None:
    verdict = why(flipped(small, tmp_path, Flip(1, 5, 24), {"workers": 2, "zero": 3}), 7).verdict
    assert (verdict.cause, verdict.duration, verdict.ranks) == ("hardware", "transient", ())
    assert "the rows of all ranks differ" in verdict.why


def garbage(folder: Path, seed: int) -> tuple[SmallOut, bytes]:
    """A small OUT one of whose documents has random tokens, and which."""
    texts = [record.text for record in make_records()[0]]
    (folder / "few.tiktoken").write_bytes(train_bpe(texts, 512))
    rng = np.random.default_rng(seed)
    kept = [record.doc_id for record in make_records()[0] if record.status == "kept"]
    chosen = kept[int(rng.integers(len(kept)))]

    def plant(doc_id: bytes, tokens: np.ndarray) -> np.ndarray:
        if doc_id != chosen:
            return tokens
        return np.append(rng.integers(0, 256, len(tokens) - 1), tokens[-1]).astype(np.uint32)

    tokenizer = load_tokenizer(str(folder / "few.tiktoken"))
    return make_small_out(str(folder / "made"), tokenizer=tokenizer, plant=plant), chosen


def assert_first(folder: Path, seed: int) -> None:
    small, chosen = garbage(folder, seed)
    mine = Trained(
        small=small, folder=folder, changes={"steps": 40, "optimizer": {"lr": 1e-2, "warmup_steps": 2}}
    )
    copy_out(small, folder)
    assert mine.run.start(checkpoint={"every": 5, "keep": 20}).finished
    seen = [step for step, rows in read_in(mine, chosen).items() if step >= 10 and rows >= 20]
    found = why(mine, seen[0])
    assert found.verdict.cause == "data"
    assert found.documents[0].doc_id == chosen.hex()


def read_in(mine: Trained, doc_id: bytes) -> dict[int, int]:
    """How many tokens of a document each step read."""
    from lineage.store.lookup import Lookup
    from lineage.store.rows import ShardSpan
    from lineage.trace.exposure import exposures, fold
    from trainer.provenance.exposure import find_readings
    from trainer.provenance.reached import read_facts

    more = read_facts([str(mine.run.output)], mine.out.url)
    (training,) = fold(more.runs, more.segments)
    (row,) = Lookup(mine.out).documents([doc_id])
    assert row.shard is not None and row.start is not None and row.num_tokens is not None
    steps: dict[int, int] = {}
    for one in exposures(
        training, ShardSpan(row.source, row.shard, row.start, row.num_tokens), find_readings
    ):
        steps[one.step] = steps.get(one.step, 0) + one.num_tokens
    return steps


def test_a_garbage_document_is_ranked_first(tmp_path: Path) -> None:
    assert_first(tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_garbage_document_is_ranked_first_in_each_of_twenty_runs(seed: int, tmp_path: Path) -> None:
    assert_first(tmp_path, seed)
