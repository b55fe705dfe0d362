"""The table that mixtures are judged by: the weights of each run and its losses; also read from published CSV
files."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lineage.recipe import RecipeError, utf8_text

Floats = NDArray[np.float64]

_ROUNDING: Final = 0.02
"""How far from 1 a row's sum may lie: published shares are rounded to three places."""
_INDEX: Final = ("index", "run", "id", "")
_AFFIXES: Final = ("metric/", "train_", "valid_", "_val_loss", "_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """Runs and what they measured. `weights`: (runs, sources), rows sum to one; `losses`: (runs, targets),
    nats."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    weights: Floats
    losses: Floats

    @property
    def num_runs(self) -> int:
        """Rows of both tables."""
        return len(self.weights)

    def column(self, target: str) -> int:
        """The number of a target: its exact name, or a part that one name alone has. RecipeError if there is
        none."""
        if target in self.targets:
            return self.targets.index(target)
        found = [number for number, name in enumerate(self.targets) if target in name]
        if len(found) != 1:
            what = "no run has this target" if not found else f"{len(found)} targets have this in their names"
            raise RecipeError(f"--target {target!r}: {what}; expected one of {', '.join(self.targets)}")
        return found[0]

    def own_source(self, target: int) -> int | None:
        """The source that a target measures, by their names without the usual affixes; None where no name
        fits."""
        cores = [_core(source) for source in self.sources]
        core = _core(self.targets[target])
        return cores.index(core) if core in cores else None


def _core(name: str) -> str:
    for affix in _AFFIXES:
        name = name.removesuffix(affix) if affix.startswith("_") else name.removeprefix(affix)
    return name


def read_swarm(weights: str, losses: str) -> Swarm:
    """Two CSV files with a header, joined by their first column where it is an index, else row by row; rows
    of weights are renormalised. RecipeError where a file cannot be read, rows do not fit, or weights do not
    sum to one."""
    sources, runs, shares = _read(weights)
    targets, measured, values = _read(losses)
    for path, named in ((weights, runs), (losses, measured)):
        run, times = Counter(named).most_common(1)[0]
        if times > 1:
            raise RecipeError(
                f"{path}: run {run} is there {times} times. Each run needs one row in each file"
            )
    if set(runs) != set(measured):
        odd = sorted(set(runs) ^ set(measured))[:3]
        raise RecipeError(
            f"{weights} has {len(runs)} runs, {losses} has {len(measured)}; not in both: {', '.join(odd)}."
            " Each run needs one row in each file"
        )
    rows = {run: row for row, run in enumerate(measured)}
    ordered = values[[rows[run] for run in runs]]
    return Swarm(sources=sources, targets=targets, weights=normalise(shares, runs, weights), losses=ordered)


def normalise(weights: Floats, runs: Sequence[str], where: str) -> Floats:
    """Rows that sum to one. RecipeError for a negative share or a row whose sum is not one even before
    rounding."""
    sums = weights.sum(axis=1)
    wrong = np.flatnonzero((np.abs(sums - 1.0) > _ROUNDING) | (weights < 0).any(axis=1))
    if len(wrong):
        row = int(wrong[0])
        if (weights[row] < 0).any():
            raise RecipeError(
                f"{where}: run {runs[row]} has the share {weights[row].min():g}, expected at least 0"
            )
        raise RecipeError(f"{where}: the weights of run {runs[row]} sum to {sums[row]:g}, expected 1")
    normal: Floats = weights / sums[:, None]
    return normal


def check_fits(train: Swarm, test: Swarm) -> None:
    """RecipeError unless both have the same columns in the same order."""
    for name, ours, theirs in (
        ("sources", train.sources, test.sources),
        ("targets", train.targets, test.targets),
    ):
        if ours != theirs:
            odd = sorted(set(ours) ^ set(theirs))
            raise RecipeError(
                f"the test files have other {name}: {', '.join(odd) or 'the same in another order'}"
            )


def _read(path: str) -> tuple[tuple[str, ...], list[str], Floats]:
    try:
        text = utf8_text(Path(path).read_bytes(), path)
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except (OSError, csv.Error) as error:
        raise RecipeError(f"{path} cannot be read as CSV: {error}") from error
    if len(rows) < 2:
        raise RecipeError(f"{path}: expected a header and at least one run")
    first = 1 if rows[0][0].lower() in _INDEX else 0
    header = tuple(rows[0][first:])
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]):
            raise RecipeError(f"{path}, line {number}: {len(row)} cells, expected {len(rows[0])}")
    try:
        values = np.array([row[first:] for row in rows[1:]], dtype=np.float64)
    except ValueError as error:
        raise RecipeError(f"{path}: {error}; expected numbers under every column") from error
    if not np.isfinite(values).all():
        raise RecipeError(f"{path}: a value is not finite; leave out runs that have no result")
    runs = [row[0] for row in rows[1:]] if first else [str(number) for number in range(len(values))]
    return header, runs, values
