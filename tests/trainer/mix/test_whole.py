"""An ablation from its design to a mixture that is measured to be better, killed twice on the way."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pipeline.cli.main import main
from tests.support.training.mix_demo import make_output, write_recipe
from trainer.mix.ablation import AblationLaunch, carry_out
from trainer.mix.design import Point
from trainer.mix.proxies import Ablation, goal_losses, noise_floor, open_ablation, read_result, results
from trainer.options import load_train_recipe

pytestmark = pytest.mark.slow


def sluice(*arguments: str) -> dict[str, Any]:
    """What a command tells as JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*arguments, "--json"]) == 0
    told: dict[str, Any] = json.loads(printed.getvalue())
    return told


def kill_after(num_results: int, recipe: Path, folder: Path) -> None:
    """Start `sluice mix run`, and kill it alone once so many runs are finished. Its proxies end with it."""
    process = subprocess.Popen([sys.executable, "-m", "pipeline", "mix", "run", str(recipe)])
    proxies: list[psutil.Process] = []
    try:
        while not proxies or len(finished(folder)) < num_results:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
            proxies = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    while any(map(alive, proxies)):
        time.sleep(0.05)


def finished(folder: Path) -> list[str]:
    """The runs that have a result (and not the beginning of one)."""
    return [path.stem for path in folder.glob("results/[!.]*.json")]


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; nobody may have taken note of its end yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def state_of_finished(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every file that the finished runs left."""
    names = finished(folder)
    files = [folder / f"results/{name}.json" for name in names]
    files += [path for name in names for path in (folder / "runs" / name).rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def measure(ablation: Ablation, name: str, weights: dict[str, float], seeds: range) -> np.ndarray:
    """The goal's loss of a mixture, trained with each of these seeds."""
    points = [Point(name=f"{name}-{seed}", role="held_out", weights=weights, seed=seed) for seed in seeds]
    carry_out(ablation, points, AblationLaunch())
    return goal_losses([read_result(ablation, point) for point in points], ablation.goal())


@pytest.mark.timeout(2 * 3600)
def test_the_recommended_mixture_is_measured_to_be_better_than_uniform_and_natural(tmp_path: Path) -> None:
    recipe = write_recipe(make_output(tmp_path / "data"), tmp_path)
    folder = tmp_path / "run" / "mix"
    assert len(sluice("mix", "design", str(recipe))["runs"]) == 25

    kill_after(5, recipe, folder)
    first = state_of_finished(folder)
    kill_after(14, recipe, folder)
    second = state_of_finished(folder)
    told = sluice("mix", "run", str(recipe))
    last = state_of_finished(folder)
    assert {name: last[name] for name in first} == first
    assert {name: last[name] for name in second} == second
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == sorted({row["run"] for row in rows})
    assert len(rows) == len(told["runs"]) == 25

    choice, report = sluice("mix", "optimize", str(recipe)), sluice("mix", "report", str(recipe))
    assert report["choice"]["weights"] == choice["weights"]
    assert report["scores"]["log_linear"]["mae"] < report["scores"]["mean"]["mae"]
    assert Path(report["file"]).exists()

    ablation = open_ablation(load_train_recipe(recipe))
    found, goal = results(ablation), ablation.goal()
    natural = goal_losses([result for result in found if result.role in ("natural", "replicate")], goal)
    seeds = range(found[0].seed, found[0].seed + len(natural))
    uniform = measure(ablation, "uniform", found[1].weights, seeds)
    recommended = measure(ablation, "recommended", choice["weights"], seeds)
    floor = noise_floor(found, goal)
    figures = {
        name: round(float(losses.mean()), 4)
        for name, losses in (("recommended", recommended), ("uniform", uniform), ("natural", natural))
    }
    scores = {name: (score["spearman"], score["mae"]) for name, score in report["scores"].items()}
    print(
        json.dumps(
            figures
            | {
                "noise_floor": floor,
                "predicted": choice["predicted"],
                "weights": choice["weights"],
                "spearman and mean error": scores,
            }
        )
    )
    assert found[1].role == "uniform"
    assert floor is not None
    assert recommended.mean() < uniform.mean() - floor
    assert recommended.mean() < natural.mean() - floor
