"""A training run as a user starts it: under torchrun or under Ray, in processes of its own, which may be
killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

from lineage.recipe import as_toml
from tests.support.training.forgotten import Trained

Launcher = Literal["torchrun", "ray"]
LAUNCHERS: Sequence[Launcher] = ("torchrun", "ray")
Victim = Literal["whole", "worker"]
VICTIMS: Sequence[Victim] = ("whole", "worker")
"""What a SIGKILL meets: the call with all its processes, or one rank."""


def command_line(trained: Trained, launcher: Launcher, *options: str) -> list[str]:
    """The command line; the recipe is written beside the run's output."""
    recipe = trained.folder / f"{trained.name}.toml"
    recipe.write_text(as_toml(trained.run.recipe()))
    processes = f"--nproc-per-node={trained.run.recipe().train.num_workers}"
    before = ["torch.distributed.run", processes, "--standalone", "-m", "trainer"]
    return [
        sys.executable,
        "-m",
        *(before if launcher == "torchrun" else ["pipeline", "train"]),
        str(recipe),
        *options,
    ]


def finish(command: Sequence[str]) -> str:
    """Run a call until it ends well; gives what it told on stderr."""
    ended = subprocess.run(
        command, capture_output=True, text=True, env=_environment(), timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def finish_killed(trained: Trained, command: Sequence[str], victim: Victim, after: int) -> str:
    """Run a call until its own attempt has done the step `after`, SIGKILL its victim, and make the same call
    again unless the first one goes on by itself, as Ray Train does without a worker; gives what the last call
    told."""
    before = max(row["attempt"] for row in _rows(trained))
    with _started(command) as process:
        while not any(row["attempt"] > before and row["step"] >= after for row in _rows(trained)):
            assert process.poll() is None, f"it ended before it was killed: {process.communicate()[1]}"
            time.sleep(0.005)
        if victim == "whole":
            kill_with_all_below(process.pid)
        else:
            os.kill(_workers_below(process.pid)[-1], signal.SIGKILL)
        done = max(row["step"] for row in _rows(trained) if row["attempt"] > before)
        assert done < trained.run.recipe().train.steps - 1, "it was done before it was killed"
        told = process.communicate(timeout=900)[1]
        if process.returncode == 0:
            return told
    return finish(command)


def kill_with_all_below(pid: int) -> None:
    """Kill a process and all below it: torchrun and Ray start theirs in sessions of their own."""
    for child, _ in [(pid, ""), *_processes_below(pid)]:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _workers_below(pid: int) -> list[int]:
    """The training processes of a call: torchrun's children, or Ray's actors of that name."""
    below = _processes_below(pid)
    return [child for child, command in below if "RayTrainWorker" in command or "-m trainer" in command]


def _processes_below(pid: int) -> list[tuple[int, str]]:
    """(id, command line) of each."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    parents = {int(child): int(parent) for child, parent, *_ in rows}

    def is_below(child: int) -> bool:
        return child in parents and (parents[child] == pid or is_below(parents[child]))

    return [(int(child), " ".join(command)) for child, _, *command in rows if is_below(int(child))]


@contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        env=_environment(),
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_with_all_below(process.pid)
        process.wait()


def _rows(trained: Trained) -> list[dict[str, int]]:
    """The whole lines of every attempt."""
    text = (trained.run.output / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | {
        "OMP_NUM_THREADS": "1"
    }
