"""How each attempt of a run was set up: its recipe, layout and versions, which weights it began with, and against which
benchmarks its data was checked.

  attempts/00001.setup    written once, when the attempt begins; the fact `start` of lineage.jsonl repeats it in part

A certificate reads both, so that one that was changed is found. No torch here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from lineage.ids import content_hash
from lineage.index.checked_against import CheckedAgainst, checked_against
from lineage.recipe import as_plain
from lineage.storage.folder import Folder
from trainer.options import TrainRecipe

_PACKAGES: Final = ("sluice", "torch", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The weights that `train.init_from` names. `digest`: of the file that makes the folder whole. `output`, `run`,
    `step` and `attempt`: of the run that made them, as far as the folder says it."""

    url: str
    digest: str
    output: str | None = None
    run: str | None = None
    step: int | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an attempt was started with. `layout`: what the order of additions hangs on; `origin`: None where it began
    with the seed's weights, or went on from a checkpoint; `benchmarks`: against which the data was checked, by the
    output read (None: an attempt of an earlier release)."""

    recipe_hash: str
    seed: int
    layout: Mapping[str, Any]
    device: str
    versions: Mapping[str, str]
    origin: Origin | None = None
    benchmarks: Mapping[str, Sequence[CheckedAgainst]] | None = None


def make_setup(recipe: TrainRecipe, device: str, origin: Origin | None) -> Setup:
    """The setup of an attempt that begins now."""
    table = recipe.train
    layout = dataclasses.asdict(table.mesh) | {
        "zero": table.zero,
        "micro_batch": table.micro_batch,
        "dtype": table.dtype,
        "compile": table.compile,
        "activation_checkpointing": table.activation_checkpointing,
        "schedule": table.pipeline.schedule if table.mesh.pp > 1 else None,
    }
    return Setup(
        recipe_hash=recipe_hash(recipe),
        seed=recipe.seed,
        layout=layout,
        device=device,
        versions={name: _version(name) for name in _PACKAGES},
        origin=origin,
        benchmarks={data.out: checked_against(Folder(data.out)) for data in table.outs},
    )


def recipe_hash(recipe: TrainRecipe) -> str:
    """BLAKE3-128 (hex) of [run] and [train] with every default; where processes run and what is planned is left out."""
    plain = as_plain(recipe)
    return content_hash(json.dumps({name: plain[name] for name in ("run", "train")}, sort_keys=True).encode()).hex()


def record_setup(output: Folder, attempt: int, setup: Setup) -> None:
    """Write down how an attempt was set up, before it does a step."""
    output.publish(_name(attempt), json.dumps(dataclasses.asdict(setup), sort_keys=True).encode())


def read_setup(output: Folder, attempt: int) -> Setup | None:
    """None for an attempt of an earlier release, which wrote none."""
    if not output.exists(_name(attempt)):
        return None
    row = json.loads(output.read(_name(attempt)))
    told = row.get("benchmarks")
    benchmarks = None if told is None else {out: tuple(map(_benchmark, found)) for out, found in told.items()}
    origin = None if row["origin"] is None else Origin(**row["origin"])
    return Setup(**{**row, "origin": origin, "benchmarks": benchmarks})


def _benchmark(row: dict[str, Any]) -> CheckedAgainst:
    return CheckedAgainst(**{**row, "sources": tuple(row["sources"])})


def _name(attempt: int) -> str:
    return f"attempts/{attempt:05d}.setup"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
