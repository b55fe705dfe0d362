"""What the recorder costs: processor time of a collective with and without it, in turns, as a share of a
step.

    python -m benchmarks.recorder [--calls 5000] [--rounds 15] [--depth 30]

One process is its own group, so that a collective is next to nothing but the way there: what is left of the
difference is timing and noting. The call lies `--depth` frames below the trainer's line, about as many as
fully_shard has between. The share is that of a step of 100 ms with as many collectives and waits as
fully_shard makes for so many layers."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.recorder.recorder import Recorder, RecorderOptions
from trainer.telemetry.timing import PhaseClock

_Way = Callable[[torch.Tensor], None]

_STEP_SECONDS: Final = 0.1
_CALLS_OF_A_STEP: Final = 96
_LAYERS: Final = (16, 32)
_COLLECTIVES_OF_A_LAYER: Final = 3
"""All-gather in forward and in backward, reduce-scatter; each is waited for."""


def main() -> None:
    """Print the cost of a call and of a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--depth", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=cast(Any, dist).HashStore(), rank=0, world_size=1)
    plain = {name: [] for name in _WAYS}  # type: dict[str, list[float]]
    recorded = {name: [] for name in _WAYS}  # type: dict[str, list[float]]
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        for number in range(options.rounds):
            for name, way in _WAYS.items():
                plain[name].append(_seconds(way, options.calls, options.depth, _no_step))
                recorded[name].append(_recorded(Path(folder), number, way, options))
    dist.destroy_process_group()
    # The least of each: another process can only make a round slower.
    more = {name: min(recorded[name]) - min(plain[name]) for name in _WAYS}
    for name, seconds in more.items():
        print(
            f"{name}: {min(plain[name]) * 1e6:.1f} µs a call, {seconds * 1e6:.1f} µs more with the recorder"
        )
    for layers in _LAYERS:
        share = layers * _COLLECTIVES_OF_A_LAYER * more["asynchronous, waited for"] / _STEP_SECONDS
        print(f"{layers} layers of fully_shard: {share:.2%} of a step of {_STEP_SECONDS * 1e3:.0f} ms")


def _recorded(folder: Path, number: int, way: _Way, asked: argparse.Namespace) -> float:
    clock = PhaseClock(torch.device("cpu"))
    options = RecorderOptions(
        output=Folder(str(folder)),
        rank=0,
        world_size=1,
        attempt=number + 1,
        device="cpu",
        num_operations=2048,
        num_steps=512,
    )
    recorder = Recorder(options, clock)
    try:

        def begin_step(step: int) -> None:
            if step:
                clock.end_step()
            recorder.operations.step = step
            clock.enter("forward")
            clock.data_arrived()

        return _seconds(way, asked.calls, asked.depth, begin_step)
    finally:
        recorder.close()


def _no_step(step: int) -> None:
    """Nothing."""


def _seconds(way: _Way, calls: int, depth: int, begin_step: Callable[[int], None]) -> float:
    """Processor seconds of a call in this thread, `depth` frames down."""
    if depth:
        return _seconds(way, calls, depth - 1, begin_step)
    tensor = torch.ones(16)
    way(tensor)
    began = time.thread_time()
    for number in range(calls):
        if number % _CALLS_OF_A_STEP == 0:
            begin_step(number // _CALLS_OF_A_STEP)
        way(tensor)
    return (time.thread_time() - began) / calls


def _wait_at_once(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def _wait_later(tensor: torch.Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()


_WAYS: Final = {"blocking": _wait_at_once, "asynchronous, waited for": _wait_later}

if __name__ == "__main__":
    main()
