"""From the death of a process to the next step that had not been finished before, on the same recipe and
machine: in place, beside a restart of all processes from the newest checkpoint (torchrun ends them, and the
same call is made again at once).

Each side is one run of four processes in which a process is killed again and again, another rank each time,
once some steps are done; the sides take turns. What is lost by a restart hangs on `--every`, the steps
between two checkpoints: those since the last one are done again.

    python -m benchmarks.recovery [--kills 5] [--rounds 1] [--every 20] [--workers 4] [--ray] [--torchft PYTHON]

With --ray there are also both by `sluice train`, in a Ray of its own: in actors, and in Ray Train, which
starts all its workers again. PYTHON has torchft beside what this one has (`peers/torchft_train.py`, which
trains the same model): Ray Train with it replaces the dead worker alone, no step counts until that is there,
and the step in which it died is dropped with its batch."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support.outputs.tiny_corpus import make_corpus

_STEPS_BETWEEN: Final = 25
"""Steps from one death to the next: more than `--every`, so that each side has saved in between."""
_DEADLINE_SECONDS: Final = 900.0

RECIPE: Final = """
[run]
name = "{name}"
[train]
data = "{data}"
output = "{output}"
model = "debug"
seq_len = 128
global_batch = 16
steps = {steps}
zero = 0
workers = {workers}
[train.checkpoint]
every = {every}
"""

IN_PLACE: Final = """
[train.recovery]
mode = "in_place"
spares = 1
"""


IN_PLACE_ON_RAY: Final = "in place on Ray"
RESTART_ON_RAY: Final = "restart on Ray"
TORCHFT: Final = "Ray Train with torchft"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=5, help="in each run")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each side")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--ray", action="store_true", help="also both on Ray")
    parser.add_argument("--torchft", metavar="PYTHON", help="also Ray Train with torchft, which this one has")
    options = parser.parse_args()
    sides = ["in place", "restart"]
    sides += [IN_PLACE_ON_RAY, RESTART_ON_RAY] if options.ray else []
    sides += [TORCHFT] if options.torchft else []
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="sluice-recovery-") as scratch:
        data = make_corpus(str(Path(scratch) / "out"), {"web": [70_000]}).url
        for number in range(options.rounds):
            for side in sides:
                if side == TORCHFT:
                    found = _TorchftRun(Path(scratch), number, options).deaths()
                else:
                    found = _Run(Path(scratch), data, side, number, options).deaths()
                seconds[side].extend(found)
                print(json.dumps({"side": side, "seconds": [round(one, 2) for one in found]}), flush=True)
    medians = {side: statistics.median(each) for side, each in seconds.items()}
    summary: dict[str, float | int] = {"deaths": len(seconds["in place"])}
    for side, each in seconds.items():
        summary |= {f"{side}, median s": round(medians[side], 2), f"{side}, worst s": round(max(each), 2)}
    for side in seconds:
        if side != "in place":
            summary[f"in place over {side}"] = round(medians["in place"] / medians[side], 3)
    if options.ray:
        ratio = round(medians[IN_PLACE_ON_RAY] / medians[RESTART_ON_RAY], 3)
        summary[f"{IN_PLACE_ON_RAY} over {RESTART_ON_RAY}"] = ratio
    print(json.dumps(summary, indent=1))


class _Run:
    """One run of a side."""

    def __init__(self, scratch: Path, data: str, side: str, number: int, options: argparse.Namespace) -> None:
        self._side, self._options = side, options
        self._output = scratch / f"{side.replace(' ', '-')}-{number}"
        self._recipe = self._output.with_suffix(".toml")
        text = RECIPE.format(
            name=self._output.name,
            data=data,
            output=self._output,
            steps=(options.kills + 1) * _STEPS_BETWEEN,
            workers=options.workers,
            every=options.every,
        )
        self._recipe.write_text(text + (IN_PLACE if self._is_in_place else ""))

    @property
    def _is_in_place(self) -> bool:
        return self._side in ("in place", IN_PLACE_ON_RAY)

    def deaths(self) -> list[float]:
        """Kill a process after each stretch of steps; the seconds until the run got further than it was."""
        found = []
        try:
            self._start()
            for number in range(self._options.kills):
                self._wait_for((number + 1) * _STEPS_BETWEEN)
                os.kill(self._process_of(number % self._options.workers), signal.SIGKILL)
                began, step = time.perf_counter(), self._step()
                self._wait_for(step + 1)
                found.append(time.perf_counter() - began)
            if self._run.wait(_DEADLINE_SECONDS):
                raise SystemExit(f"{self._recipe}: exit code {self._run.returncode}: {self._said()}")
        finally:
            self._run.kill()
        return found

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(self._log, "ab") as log:
            command = self._command()
            self._run = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    @property
    def _log(self) -> Path:
        return self._output.with_suffix(".log")

    def _said(self) -> str:
        return self._log.read_text()[-2000:]

    def _command(self) -> list[str]:
        if self._side in (IN_PLACE_ON_RAY, RESTART_ON_RAY):
            return [sys.executable, "-m", "sluice", "train", str(self._recipe)]
        if self._side == "in place":
            return [sys.executable, "-m", "trainer", str(self._recipe)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--monitor-interval=0.1"]
        return [*torchrun, f"--nproc-per-node={self._options.workers}", "-m", "trainer", str(self._recipe)]

    def _step(self) -> int:
        """The furthest step that is reported; -1 before the first."""
        metrics = self._output / "metrics.jsonl"
        if not metrics.exists():
            return -1
        whole = metrics.read_bytes().rpartition(b"\n")[0]
        return max((json.loads(line)["step"] for line in whole.splitlines()), default=-1)

    def _wait_for(self, step: int) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while self._step() < step:
            if self._run.poll() is not None and self._side == "restart":
                self._start()  # the same call again, at once
            elif self._run.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self._recipe}: step {step} did not come: {self._said()}")
            time.sleep(0.01)

    def _process_of(self, rank: int) -> int:
        if self._is_in_place:
            rows = json.loads((self._output / "ranks.json").read_text())
            return int(next(row["pid"] for row in rows if row["rank"] == rank))
        if self._side == RESTART_ON_RAY:
            below = psutil.Process(self._run.pid).children(recursive=True)
            workers = [
                int(process.pid) for process in below if "RayTrainWorker" in " ".join(process.cmdline())
            ]
            return sorted(workers)[rank]  # Ray Train tells nobody which is which; of equals any will do
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # one that ends meanwhile
                if folder.name.isdigit() and f"PPid:\t{self._run.pid}\n" in (folder / "status").read_text():
                    variables = (folder / "environ").read_bytes().split(b"\0")
                    if f"RANK={rank}".encode() in variables:
                        return int(folder.name)
        raise SystemExit(f"no process of {self._run.pid} is rank {rank}")


class _TorchftRun:
    """One run of Ray Train with torchft, on the recipe's model."""

    def __init__(self, scratch: Path, number: int, options: argparse.Namespace) -> None:
        self._options = options
        self._output = scratch / f"torchft-{number}"
        self._output.mkdir()
        self._read, self._rows = 0, list[Mapping[str, Any]]()

    def deaths(self) -> list[float]:
        """Kill a worker after each stretch of steps; the seconds until the next step."""
        workers, found = self._options.workers, list[float]()
        command = [self._options.torchft, "-m", "benchmarks.peers.torchft_train", str(self._output)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
            self._run = subprocess.Popen([*command, str(workers)], stdout=log, stderr=log, env=environment)
        try:
            step = 0
            for number in range(self._options.kills):
                self._wait_for(step + _STEPS_BETWEEN, num_ranks=workers)
                pid = next(row["pid"] for row in reversed(self._metrics()) if row["rank"] == number % workers)
                os.kill(pid, signal.SIGKILL)
                began, step = time.perf_counter(), max(row["step"] for row in self._metrics())
                self._wait_for(step + 1, num_ranks=1)
                found.append(time.perf_counter() - began)
        finally:
            self._run.terminate()
            self._run.wait(_DEADLINE_SECONDS)
        return found

    @property
    def _log(self) -> Path:
        return self._output.with_suffix(".log")

    def _wait_for(self, step: int, *, num_ranks: int) -> None:
        """Until as many ranks have finished this step or a later one."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while len({row["rank"] for row in self._metrics() if row["step"] >= step}) < num_ranks:
            if self._run.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{TORCHFT}: step {step} did not come: {self._log.read_text()[-2000:]}")
            time.sleep(0.01)

    def _metrics(self) -> Sequence[Mapping[str, Any]]:
        """A line of each finished step of each worker."""
        with contextlib.suppress(FileNotFoundError), (self._output / "metrics.jsonl").open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
            self._read += len(whole) + bool(whole)
            self._rows.extend(json.loads(line) for line in whole.splitlines())
        return self._rows


if __name__ == "__main__":
    main()
