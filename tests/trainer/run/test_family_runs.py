"""Runs of families with windows, with experts and with latents: a restart, a forgotten document and a process that
dies leave no trace in the bits; what was forgotten is certified, and a step is replayed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import (
    Trained,
    applied,
    assert_equal,
    copy_out,
    make_few_ids_out,
    never_read,
)
from tests.support.training.in_place import IN_PLACE, Death, check_same, train_with, without_recovery
from tests.support.training.replayed import replays
from tests.support.training.training_runs import Run
from tests.support.training.transformers_models import reference_model
from trainer.evidence.replayed_step import step_to_replay
from trainer.evidence.why import explain_step
from trainer.recovery.forget import forget

FAMILIES = ("olmo3", "gpt_oss", "deepseek_v3")
LAYOUTS: Mapping[str, dict[str, Any]] = {
    "olmo3": {"parallel": {"tp": 2}},
    "gpt_oss": {"workers": 2, "parallel": {"dp_shard": 2, "ep": 2}},
    "deepseek_v3": {"parallel": {"tp": 2}, "experts": {"bias_rate": 0.01}},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_few_ids_out(tmp_path_factory.mktemp("small"))


def changes(family: str, folder: Path) -> dict[str, Any]:
    """A short run of the family's small model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**reference_model(family).config, "vocab_size": 640}))
    return {
        "model": str(folder),
        "dtype": "float32",
        "optimizer": {"lr": 1e-2, "warmup_steps": 2},
        **LAYOUTS[family],
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_killed_run_ends_with_the_same_bits(family: str, small: SmallOut, tmp_path: Path) -> None:
    short = {**changes(family, tmp_path / "model"), "steps": 6, "checkpoint": {"every": 2}}
    whole = Run(data=small.folder.url, output=tmp_path / "whole", changes=short)
    assert whole.start().finished
    run = Run(data=small.folder.url, output=tmp_path / "run", changes=short)
    run.start_and_kill(3)
    assert run.start().finished
    assert run.losses() == whole.losses()
    assert hashes_of_last_checkpoint(run) == hashes_of_last_checkpoint(whole) != {}


def hashes_of_last_checkpoint(run: Run) -> dict[str, list[int | str]]:
    """Size and hash of every rank's tensors."""
    complete = json.loads((run.output / "checkpoints" / run.checkpoints()[-1] / "complete.json").read_text())
    return {name: entry for name, entry in complete["files"].items() if name.endswith(".distcp")}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_forgetting_leaves_the_bits_of_a_run_that_never_read_it(
    family: str, small: SmallOut, tmp_path: Path
) -> None:
    mine = Trained(small=small, folder=tmp_path, changes=changes(family, tmp_path / "model"))
    copy_out(small, tmp_path)
    assert mine.run.start().finished
    purge = mine.purge(mine.record_first_read_in(range(5, 6)))
    assert True in applied(mine)
    assert forget(mine.run.recipe(), (purge,), restart=False).trains
    assert mine.run.start().finished
    assert True not in applied(mine)
    fresh = never_read(mine)
    assert_equal(mine, fresh)
    output, out, certificate = str(mine.run.output), mine.out.url, str(tmp_path / "certificate.json")
    assert main(["certify", output, "--to", certificate]) == 0
    assert main(["certify", "--check", certificate, output, out]) == 0
    assert main(["certify", "--check", certificate, output, "--against", str(fresh.run.output)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_replayed_bit_for_bit(family: str, small: SmallOut, tmp_path: Path) -> None:
    recorded = {**changes(family, tmp_path / "model"), "record_losses": True}
    mine = Trained(small=small, folder=tmp_path, changes=recorded)
    copy_out(small, tmp_path)
    assert mine.run.start().finished
    found = explain_step(
        step_to_replay(Folder(str(mine.run.output)), 6), replays(tmp_path / "replays", flips=False)
    )
    assert found.verdict.cause == "data"
    row = mine.run.metrics()[6]
    assert (found.loss, found.recorded_loss, found.gradient_norm) == (row["loss"],) * 2 + (row["grad_norm"],)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_spare_takes_the_place_of_a_killed_replica(family: str, small: SmallOut, tmp_path: Path) -> None:
    parallel = {"dp_replicate": 2, "dp_shard": 2, "ep": 2 if family == "gpt_oss" else 1}
    of_run = {
        **changes(family, tmp_path / "model"), "steps": 9, "workers": 4, "parallel": parallel, "recovery": IN_PLACE,
    }  # fmt: skip
    whole = without_recovery(Run(data=small.folder.url, output=tmp_path / "whole", changes=of_run))
    assert whole.start().finished
    run = Run(data=small.folder.url, output=tmp_path / "run", changes=of_run)
    result = train_with(run, {0: (Death(rank=0, where="backward", nth=7),)})
    assert (result.finished, result.attempt) == (True, 2)
    check_same(run, whole)
