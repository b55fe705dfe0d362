"""A finished ablation over a small corpus whose losses follow a known law: all that fitting and reporting
read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from trainer.mix.proxies import Ablation, Point, ProxyResult, open_ablation, write_design, write_tables
from trainer.options import load_train_recipe

EXPONENTS = {"books": (0.1, 1.0, 0.8), "code": (1.2, 0.1, 1.0), "web": (0.7, 0.9, 0.2)}
"""Of each target's law 2 + exp(t · w), over books, code, web."""


def law(target: str, weights: dict[str, float]) -> float:
    """The loss of a target under a mixture, nats."""
    shares = np.array([weights[source] for source in sorted(EXPONENTS)])
    return 2.0 + float(np.exp(shares @ EXPONENTS[target]))


def write_recipe(corpus: str, folder: Path, **mix: Any) -> Path:
    """A recipe with [mix] over a corpus of books, code and web."""
    train = {
        "data": corpus,
        "output": str(folder / "run"),
        "model": "debug",
        "seq_len": 32,
        "global_batch": 8,
        "steps": 100,
        "validation": 0.1,
    }
    table = {"runs": 16, "replicates": 3, "held_out": 5, "proxy": {"tokens": 60_000}, **mix}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps({"run": {"name": "measured <b>"}, "train": train, "mix": table}))
    return path


def publish_results(ablation: Ablation, losses: Callable[[Point], dict[str, float]]) -> None:
    """A result for each run of a design, in order."""
    for point in ablation.points:
        result = ProxyResult(
            name=point.name,
            role=point.role,
            weights=point.weights,
            seed=point.seed,
            tokens=ablation.tokens,
            losses=losses(point),
            seconds=2.0,
            order_fingerprints=ablation.order_fingerprints,
        )
        ablation.folder.publish(f"results/{point.name}.json", json.dumps(asdict(result)).encode())


def finished(path: Path, noise: float = 0.002) -> Ablation:
    """The recipe's ablation with a result for each run."""
    ablation = open_ablation(load_train_recipe(path))
    write_design(ablation)
    rng = np.random.default_rng(0)
    publish_results(
        ablation,
        lambda point: {t: law(t, point.weights) + float(rng.normal(0, noise)) for t in EXPONENTS},
    )
    write_tables(ablation)
    return ablation
