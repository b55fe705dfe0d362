"""DoReMi: its update worked by hand, its fixed points where they are known, and (slow) real runs."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lineage.recipe import as_toml, parse_table
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.mix_world import TARGET, World
from trainer.attempts import attempts
from trainer.checkpoint.state import held_tensors, load
from trainer.checkpoint.store import complete_checkpoints
from trainer.mix.doremi import averaged, mean_excess, update
from trainer.mix.doremi_job import DoremiJob, read_answer
from trainer.mix.doremi_run import run_job
from trainer.mix.swarm import Floats
from trainer.options import TrainRecipe
from trainer.processes.runtime import join_process_group
from trainer.run.parts import LaunchContext
from trainer.run.train import train

UNIFORM = np.full(5, 0.2)


def test_excess_is_the_mean_over_a_sources_tokens_of_what_the_reference_does_better() -> None:
    proxy, reference = np.array([1.0, 2.0, 3.0, 0.5]), np.array([0.5, 2.5, 1.0, 0.5])
    # Source 0: (0.5 + 0) / 2; source 1: (2 + 0) / 2; source 2 has no token and keeps what it had.
    found = mean_excess(proxy, reference, np.array([0, 0, 1, 1]), np.array([9.0, 9.0, 0.3]))
    assert found.tolist() == [0.25, 1.0, 0.3]


def test_an_update_is_a_multiplication_normalised_and_smoothed() -> None:
    weights, excess = np.array([0.5, 0.25, 0.25]), np.array([0.0, math.log(2), math.log(4)])
    # 0.5, 0.25 · 2, 0.25 · 4 are 1 : 1 : 2.
    assert update(weights, excess, step_size=1.0, smoothing=0.0) == pytest.approx([0.25, 0.25, 0.5])
    # Squared factors: 0.5, 0.25 · 4, 0.25 · 16 are 1 : 2 : 8; 0.7 of that, and 0.1 for each.
    expected = [0.7 * share / 11 + 0.1 for share in (1, 2, 8)]
    assert update(weights, excess, step_size=2.0, smoothing=0.3) == pytest.approx(expected)


def test_weights_that_a_large_step_took_to_nothing_grow_again() -> None:
    weights = np.array([0.5, 0.5])
    for excess, expected in (([5.0, 0.0], [1.0, 0.0]), ([0.0, 5.0], [0.0, 1.0]), ([0.0, 0.0], [0.0, 1.0])):
        weights = update(weights, np.array(excess), 1000.0, 0.0)
        assert weights == pytest.approx(expected, abs=1e-12)


def test_an_update_survives_losses_that_would_overflow() -> None:
    assert update(np.array([0.5, 0.5]), np.array([0.0, 5000.0]), step_size=1.0, smoothing=0.0).tolist() == [
        0.0,
        1.0,
    ]


def test_the_answer_is_the_mean_over_steps() -> None:
    assert averaged(np.array([[0.2, 0.8], [0.6, 0.4]])) == pytest.approx([0.4, 0.6])


def test_oracle_losses_end_with_equal_excess() -> None:
    """Each source's loss falls with its own share: then no other weights than those of equal excess stand
    still."""
    hardness = np.array([0.3, 0.5, 0.9])
    reference = np.array([0.2, 0.1, 0.4])

    def excess(weights: Floats) -> Floats:
        return np.maximum(hardness / (0.1 + weights) - reference, 0.0)

    weights = np.full(3, 1 / 3)
    for _ in range(2000):
        weights = update(weights, excess(weights), step_size=0.05, smoothing=0.0)
    assert np.ptp(excess(weights)) < 1e-9
    assert weights[2] > weights[1] > weights[0]


class TestAgainstAConvergedReference:
    """Reference and proxy of the same capacity, both of endless data: bigram models of mixtures."""

    def excess(self, world: World, weights: Floats, reference: Floats) -> Floats:
        return np.maximum(world.losses(weights @ world.pairs) - world.losses(reference @ world.pairs), 0.0)

    def test_the_reference_weights_stand_still_exactly(self) -> None:
        world = World(0)
        assert update(TARGET, self.excess(world, TARGET, TARGET), 1.0, 0.0) == pytest.approx(
            TARGET, abs=1e-16
        )

    def test_the_uniform_start_comes_back_to_the_reference_weights(self) -> None:
        world, weights, history = World(0), UNIFORM, []
        for _ in range(6000):
            weights = update(weights, self.excess(world, weights, TARGET), 1.0, 0.0)
            history.append(weights)
        assert weights == pytest.approx(TARGET, abs=1e-3)
        assert averaged(np.array(history)) == pytest.approx(TARGET, abs=0.03)

    def test_smoothing_moves_the_fixed_point_towards_uniform(self) -> None:
        world, weights = World(0), UNIFORM
        for _ in range(6000):
            weights = update(weights, self.excess(world, weights, TARGET), 1.0, 1e-3)
        assert np.abs(weights - TARGET).max() > 5e-3
        assert np.abs(weights - UNIFORM).sum() < np.abs(TARGET - UNIFORM).sum()


def write_recipe(corpus: str, folder: Path, **mix: Any) -> Path:
    mixing = "".join(f"{name} = {value}\n" for name, value in mix.items())
    path = folder / "recipe.toml"
    path.write_text(f"""[run]
name = "doremi-{folder.name}"
[train]
data = "{corpus}"
output = "{folder / "run"}"
model = "debug"
seq_len = 32
global_batch = 12
steps = 100
validation = 0.1
[mix]
runs = 5
{mixing}proxy = {{tokens = 4600, lr = 3e-3}}
""")
    return path


class TestProxy:
    """Of a job whose reference is a checkpoint: the proxy is a run like the others."""

    def job(self, folder: Path, reference: str | None = None, **train: Any) -> tuple[DoremiJob, Folder]:
        """A job of twelve steps, of the model with experts, in `folder`; its output."""
        corpus = make_corpus(str(folder / "out"), {"web": [9000], "books": [6000]}).url
        table = {
            "data": corpus,
            "output": str(folder / "run"),
            "model": "moe-debug",
            "seq_len": 32,
            "global_batch": 6,
            "steps": 12,
            "experts": {"bias_rate": 0.01},
            "optimizer": {"lr": 3e-3, "warmup_steps": 1},
            "checkpoint": {"every": 4},
            "mixture": [{"weights": {"books": 0.5, "web": 0.5}}],
            **train,
        }
        recipe = parse_table(TrainRecipe, {"run": {"name": f"doremi-{folder.name}"}, "train": table})
        job = DoremiJob(
            recipe=as_toml(recipe),
            reference=reference or "",
            sources=("books", "web"),
            step_size=1.0,
            smoothing=1e-3,
        )
        return job, Folder(recipe.train.output)

    def reference(self, folder: Path) -> str:
        """The last checkpoint of an ordinary run."""
        job, _ = self.job(folder)
        process = join_process_group(1, 600)
        result = train(parse_table(TrainRecipe, tomllib.loads(job.recipe)), LaunchContext(process=process))
        dist.destroy_process_group()
        return result.checkpoint

    def test_a_stopped_one_goes_on_with_the_biases_of_its_routers(self, tmp_path: Path) -> None:
        reference, answers = self.reference(tmp_path / "reference"), []
        for name in ("whole", "stopped"):
            job, output = self.job(tmp_path / name, reference)
            if name == "stopped":
                asked = itertools.count()
                assert not run_job(job, lambda: next(asked) == 6)  # noqa: B023 - called within this turn
            assert run_job(job, lambda: False)
            answers.append(read_answer(output))
            checkpoints = output.folder("checkpoints")
            newest = checkpoints.folder(complete_checkpoints(checkpoints, attempts(output))[-1].name)
            held = held_tensors(newest).items()
            biases = {
                tensor: torch.zeros(entry.size) for tensor, entry in held if tensor.startswith("buffers.")
            }
            load(newest, biases, None)
            assert len(biases) > 1 and all(bias.abs().max() > 0.01 for bias in biases.values())
        assert answers[0] == answers[1]

    def test_it_begins_with_the_weights_that_the_recipe_names(self, tmp_path: Path) -> None:
        """With those of the reference nothing is in excess in the first step."""
        reference = self.reference(tmp_path / "reference")
        job, output = self.job(tmp_path / "proxy", reference, init_from=reference, steps=1)
        assert run_job(job, lambda: False)
        answer = read_answer(output)
        assert answer is not None and answer.excess == {"books": 0.0, "web": 0.0}


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_weights_of_one_that_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make_corpus(
        str(tmp_path / "out"), {"web": [9000], "books": [6000], "code": [4000], "wanted": [3000]}
    ).url
    answers = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        path = write_recipe(corpus, tmp_path / name, caps="{wanted = 0.0}")
        if name == "killed":
            kill_once_it_has_a_checkpoint(path, tmp_path / name / "run" / "mix" / "runs" / "doremi-1-0.001")
        assert main(["mix", "doremi", str(path), "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    whole, killed = answers
    assert killed["history"] == whole["history"]
    assert len(whole["history"]) == 12
    assert np.sum(whole["history"], axis=1) == pytest.approx(np.ones(12))
    assert averaged(np.array(whole["history"])) == pytest.approx(list(whole["weights"].values()))
    assert set(whole["weights"]) == {"books", "code", "web"}
    block = tomllib.loads(whole["toml"].replace("train.", ""))["mixture"][0]["weights"]
    assert block["wanted"] == 0.0 and sum(block.values()) == pytest.approx(1.0)
    starts = tmp_path / "killed" / "run" / "mix" / "runs"
    assert len(list((starts / "0000-natural" / "attempts").glob("*.claim"))) == 1
    assert len(list((starts / "doremi-1-0.001" / "attempts").glob("*.claim"))) == 2


def kill_once_it_has_a_checkpoint(recipe: Path, output: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "pipeline", "mix", "doremi", str(recipe)])
    try:
        while not list(output.glob("checkpoints/*/complete.json")):
            assert process.poll() is None, "it ended before it could be killed"
    finally:
        process.kill()
        process.wait()
