"""Whether a slow process is named and a fast one left alone, in real runs on a busy machine.

    python -m benchmarks.stragglers [--slow 20] [--clean 20] [--beside 2] [--factor 1.5]

Each run is four processes and 100 steps. In the first runs one of them takes `--factor` times as long in one phase,
another rank and phase each time: behind its own work in that phase it sleeps for the rest. In the others nobody does,
and `--beside` processes that compute without end run beside them. The exit code is 1 where a run names anybody but the
slow one."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import run_forked
from tests.support.training.training_runs import Run
from trainer.options import TrainRecipe
from trainer.processes.runtime import Process
from trainer.run.parts import LaunchContext
from trainer.run.train import train
from trainer.telemetry.phases import Phase
from trainer.telemetry.timing import PhaseClock, StepTiming

_WORKERS: Final = 4
_PHASES: Final[tuple[Phase, ...]] = ("forward", "backward")
"""Those of which half is a share of a step that is told at all (`train.stragglers.least_share`)."""
_CHANGES: Final = {
    "workers": _WORKERS,
    "zero": 0,
    "seq_len": 128,
    "global_batch": 16,
    "micro_batch": 4,
    "dtype": "float32",
    "steps": 100,
    "record_batches": False,
    "checkpoint": {"every": 100},
}


def main() -> int:
    """Print a line of JSON for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slow", type=int, default=20, help="runs with a slow process")
    parser.add_argument("--clean", type=int, default=20, help="runs without one")
    parser.add_argument("--first", type=int, default=0, help="number of the first run of each")
    parser.add_argument("--beside", type=int, default=2, help="processes that compute beside the clean runs")
    parser.add_argument("--factor", type=float, default=1.5)
    options = parser.parse_args()
    is_right = True
    with tempfile.TemporaryDirectory(prefix="sluice-stragglers-") as scratch:
        corpus = make_corpus(f"{scratch}/out", {"web": [70_000]}).url
        for number in range(options.first, options.first + options.slow):
            slow = (number % _WORKERS, _PHASES[number // _WORKERS % len(_PHASES)])
            is_right &= _look(corpus, Path(scratch) / f"slow-{number}", slow, options.factor)
        with _busy(options.beside):
            for number in range(options.first, options.first + options.clean):
                is_right &= _look(corpus, Path(scratch) / f"clean-{number}", None, 1.0)
    return 0 if is_right else 1


def _look(corpus: str, output: Path, slow: tuple[int, Phase] | None, factor: float) -> bool:
    """Whether a run names the slow rank and its phase, and nothing else."""
    run = Run(data=corpus, output=output, changes=_CHANGES)
    run_forked(run.scratch, _WORKERS, partial(_train, run.recipe(), slow, factor))
    rows = run.metrics()
    named = [each for row in rows.values() for each in row.get("stragglers", ()) if not each["ended"]]
    found = {(each["rank"], each["phase"]) for each in named}
    seconds = sorted(row["seconds"] for row in rows.values())
    told = {
        "run": output.name,
        "slow": slow,
        "named": sorted(found),
        "factors": [round(each["factor"], 2) for each in named],
        "median step s": round(seconds[len(seconds) // 2], 3),
    }
    print(json.dumps(told), flush=True)
    return found == (set() if slow is None else {slow})


def _train(recipe: TrainRecipe, slow: tuple[int, Phase] | None, factor: float, process: Process) -> None:
    if slow is not None and slow[0] == process.rank:
        _slow_down(slow[1], factor)
    train(recipe, LaunchContext(process=process))


def _slow_down(slow: Phase, factor: float) -> None:
    """This process takes `factor` times as long for its own work in a phase."""
    enter, end_step = PhaseClock.enter, PhaseClock.end_step

    def take_longer(clock: PhaseClock) -> None:
        if clock.phase == slow:
            began = clock._marks[-1][1]
            waits = [end - begin for of, begin, end in clock._waits if of == slow and begin >= began]
            time.sleep((factor - 1) * max(time.perf_counter() - began - sum(waits), 0.0))

    def slow_enter(self: PhaseClock, phase: Phase) -> None:
        take_longer(self)
        enter(self, phase)

    def slow_end(self: PhaseClock) -> StepTiming:
        take_longer(self)
        return end_step(self)

    PhaseClock.enter = slow_enter  # type: ignore[method-assign]
    PhaseClock.end_step = slow_end  # type: ignore[method-assign]


@contextlib.contextmanager
def _busy(num: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(num)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute() -> None:
    while True:
        sum(range(100_000))


if __name__ == "__main__":
    sys.exit(main())
