"""`record_losses` and norms by layer: what is kept beside the step leaves every bit of it as it is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run

STEPS = 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530], "books": [1111]}).url


def rows_of(run: Run) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for file in sorted((run.output / "batches").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            found.setdefault(row["step"], []).append(row)
    return found


LAYOUTS: dict[str, dict[str, Any]] = {
    "one process": {},
    "ddp": {"workers": 2, "zero": 0},
    "cp": {"parallel": {"cp": 2}},
    "pp": {"parallel": {"pp": 2}, "micro_batch": 1},
    "tp": {"parallel": {"tp": 2}},
}


@pytest.mark.parametrize("changes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_losses_of_rows_add_up_to_the_step_and_change_no_bit_of_it(
    changes: dict[str, Any], corpus: str, tmp_path: Path
) -> None:
    settings = {
        **changes,
        "steps": STEPS,
        "global_batch": 6,
        "skip": [[6, 6]],
        "faults": {"nan_at_step": [3]},
    }
    run = Run(data=corpus, output=tmp_path / "run", changes=settings)
    assert run.start(record_losses=True, record_batches=False).finished
    plain = Run(data=corpus, output=tmp_path / "plain", changes=settings)
    assert plain.start().finished
    assert run.losses() == plain.losses()
    assert run.sequences() == plain.sequences()
    assert "loss" not in pq.read_schema(next((plain.output / "batches").glob("*.parquet"))).names
    rows, metrics = rows_of(run), run.metrics()
    assert sorted(rows) == list(range(STEPS))
    for step, of_step in rows.items():
        assert sorted(row["row"] for row in of_step) == list(range(6))
        losses = [row["loss"] for row in of_step]
        if step == 1:
            assert losses == [None] * 6
        elif step == 3:
            assert all(math.isnan(loss) for loss in losses)
        else:
            counts = [row["num_labels"] for row in of_step]
            assert math.isclose(sum(losses) / sum(counts), metrics[step]["loss"], rel_tol=1e-12)
            assert all(0 < count < 32 for count in counts)


@pytest.mark.parametrize("changes", [{}, {"workers": 2}, {"parallel": {"tp": 2}}, {"parallel": {"pp": 2}}])
def test_a_skipped_step_has_the_norms_of_its_gradients_by_layer(
    changes: dict[str, Any], corpus: str, tmp_path: Path
) -> None:
    run = Run(
        data=corpus, output=tmp_path / "run", changes={**changes, "steps": 4, "checkpoint": {"every": 4}}
    )
    # A window of two steps and a sigma near nothing: each loss above the mean of the last two is a spike.
    faults = {"spike_window": 2, "spike_sigma": 1e-9, "max_skips": 9}
    assert run.start(faults=faults, optimizer={"lr": 1e-9}).finished
    skipped = [row for row in run.metrics().values() if row["skipped"]]
    assert skipped and all(row["reason"] == "spike" for row in skipped)
    for row in skipped:
        norms = row["grad_norm_by_layer"]
        assert list(norms) == ["embed_tokens", "layers.0", "layers.1", "norm"]
        assert math.isclose(math.hypot(*norms.values()), row["grad_norm"], rel_tol=1e-9)
    kept = [row for row in run.metrics().values() if not row["skipped"]]
    assert kept and not any("grad_norm_by_layer" in row for row in kept)
