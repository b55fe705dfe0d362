"""`sluice run` with its units in a plain pool of processes instead of Ray Data: what Ray costs is the
difference.

python -m benchmarks.peers.plain RECIPE
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

from pipeline import process
from pipeline.cluster.tasks import TaskResources
from pipeline.dedup import compare as dedup
from pipeline.phases import phase as phases
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import load

WORKERS = 2


def main(recipe: str) -> None:
    """Carry the recipe out."""
    with (
        concurrent.futures.ProcessPoolExecutor(WORKERS) as pool,
        mock.patch.object(process, "units_session", lambda *_: contextlib.nullcontext()),
        mock.patch.object(process, "check_resources"),
        mock.patch.object(dedup, "num_nodes", lambda: 1),
        mock.patch.object(phases, "run_units", _runner(pool)),
    ):
        process.run(load(recipe, []), ProgressReporter(quiet=True))


def _runner(pool: concurrent.futures.Executor) -> Callable[..., Iterator[tuple[Any, Any]]]:
    """`run_units` on the pool."""

    def run_units(
        function: Callable[[Any, Any], Any],
        job: Any,
        items: Iterable[Any],
        work: TaskResources,
        **_: object,
    ) -> Iterator[tuple[Any, Any]]:
        pending = {pool.submit(function, job, item): item for item in items}
        for done in concurrent.futures.as_completed(pending):
            yield pending[done], done.result()

    return run_units


if __name__ == "__main__":
    main(sys.argv[1])
