"""Hangs, left-out collectives and wrong sizes in the processes of a real run, as its recorders tell of them."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d

from lineage.storage.folder import Folder
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import start_forked, wait
from tests.support.training.training_runs import Run
from trainer.options import TrainRecipe
from trainer.processes.runtime import Process
from trainer.recorder.diagnosis.diagnose import Diagnosis, diagnose
from trainer.recorder.diagnosis.reading import NoRecorderError
from trainer.recorder.operations import _COLLECTIVES, _FUNCTIONAL, Operations
from trainer.run.parts import LaunchContext
from trainer.run.train import train

WORKERS = 4
FIRST_STEP = 2
LAYOUTS: dict[str, dict[str, Any]] = {
    "hsdp": {"parallel": {"dp_replicate": 2, "dp_shard": 2}},
    "fsdp": {"zero": 3},
}
LATE_SECONDS = 120.0
_Change = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], str], Any]


def _change_at(step: Callable[[int], int | None], rank: int, change: _Change) -> None:
    """In this process: `change` is done with the collective of a step that has the number which `step` says
    (from 0 on; None: with none), where the process is `rank`."""
    wrap_all = Operations._wrap_all

    def wrap_more(operations: Operations) -> None:
        wrap_all(operations)
        asked = [-1, 0, 0]  # the step, its collectives so far, and how many of them are under way

        def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if asked[0] != operations.step:
                    asked[:2] = operations.step, 0
                if asked[2]:  # a part of another one
                    return function(*args, **kwargs)
                number, asked[1] = asked[1], asked[1] + 1
                asked[2] += 1
                try:
                    if operations.step >= 0 and number == step(operations.step) and dist.get_rank() == rank:
                        return change(function, args, kwargs, name)
                    return function(*args, **kwargs)
                finally:
                    asked[2] -= 1

            return call

        for name in _COLLECTIVES:
            if (function := getattr(distributed_c10d, name, None)) is not None:
                wrapped = wrap(name, function)
                operations._put(distributed_c10d, name, wrapped)
                operations._put(dist, name, wrapped)
        for name in _FUNCTIONAL:
            if (function := getattr(functional, name, None)) is not None:
                operations._put(functional, name, wrap(name, function))

    Operations._wrap_all = wrap_more  # type: ignore[method-assign]


def _trainers_line() -> str:
    """The innermost line of the trainer that is under way, as a diagnosis writes it."""
    frame = sys._getframe()
    while "/trainer/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
        assert frame.f_back is not None
        frame = frame.f_back
    path = frame.f_code.co_filename
    return f"{path[path.rindex('/trainer/') + 1 :]}:{frame.f_lineno}"


def _come_late(scratch: Path, recipe: TrainRecipe, process: Process) -> None:
    """One of the ranks waits before each collective of a step, in one step for each: another rank each
    time."""

    def wait_for_word(function: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
        late = {"rank": process.rank, "name": name, "line": _trainers_line()}
        written = scratch / f"late-{len(list(scratch.glob('late-*')))}"
        written.with_suffix(".part").write_text(json.dumps(late))
        written.with_suffix(".part").rename(written)
        deadline = time.monotonic() + LATE_SECONDS
        while not written.with_name(f"seen-{written.name}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return function(*args, **kwargs)

    for rank in range(WORKERS):
        _change_at(
            lambda step, rank=rank: (  # type: ignore[misc]
                step - FIRST_STEP if step >= FIRST_STEP and step % WORKERS == rank else None
            ),
            rank,
            wait_for_word,
        )
    train(recipe, LaunchContext(process=process))


def _diagnosed(run: Run, is_there: Callable[[Diagnosis], bool]) -> Diagnosis:
    """The diagnosis of the recorders as soon as it holds."""
    deadline = time.monotonic() + LATE_SECONDS
    while True:
        try:
            found = diagnose(Folder(str(run.output)), run.recipe())
            if is_there(found) or time.monotonic() > deadline:
                return found
        except NoRecorderError:
            assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_hangs_before_any_collective_of_a_step_is_named_with_it_and_its_line(
    layout: str, tmp_path: Path
) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    changes = {"workers": WORKERS, "steps": 40, "checkpoint": {"every": 1000}} | LAYOUTS[layout]
    run = Run(data=corpus, output=tmp_path / "run", changes=changes)
    processes = start_forked(run.scratch, WORKERS, partial(_come_late, run.scratch, run.recipe()))
    named = list[str]()
    try:
        while any(process.exitcode is None for process in processes):
            written = run.scratch / f"late-{len(named)}"
            if not written.exists():
                time.sleep(0.01)
                continue
            late = json.loads(written.read_text())
            # Others may be on their way to their own collective at first.
            found = _diagnosed(
                run, lambda found, late=late: [each.absent for each in found.causes] == [(late["rank"],)]
            )
            (cause,) = found.causes
            assert (cause.absent, found.mismatches) == ((late["rank"],), ()), late
            line = f"{cause.operation.site.file}:{cause.operation.site.line}"
            assert line == late["line"], late
            named.append(f"{cause.operation.site.name} at {line}")
            written.with_name(f"seen-{written.name}").touch()
    finally:
        for process in processes:
            process.kill()
    assert not any(wait(processes)), run.metrics().keys()
    print(f"{layout}: {len(named)} collectives: {', '.join(dict.fromkeys(named))}")
    assert len(named) >= 8


NUM_LOSSES = 13
"""The number of the collective of a step that sums losses over all ranks."""


def _leave_out(function: Callable[..., Any], args: Any, kwargs: Any, name: str) -> None:
    """Go on without it."""


def _bring_more(function: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
    (tensor, *others) = args
    return function(torch.cat([tensor, tensor]), *others, **kwargs)


def _differ(change: _Change, number: int, recipe: TrainRecipe, process: Process) -> None:
    _change_at(lambda step: number if step == FIRST_STEP else None, 2, change)
    train(recipe, LaunchContext(process=process))


@pytest.mark.slow
@pytest.mark.parametrize("change", [_leave_out, _bring_more])
def test_who_leaves_a_collective_out_or_brings_more_to_it_is_named_with_it_and_its_line(
    change: _Change, tmp_path: Path
) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    changes = {"workers": WORKERS, "steps": 6, "checkpoint": {"every": 1000}} | LAYOUTS["hsdp"]
    run = Run(data=corpus, output=tmp_path / "run", changes=changes)
    processes = start_forked(run.scratch, WORKERS, partial(_differ, change, NUM_LOSSES, run.recipe()))
    # A group of gloo that is asked for other sizes may end its process: its ring stays.
    try:
        found = _diagnosed(
            run,  # rank 2 may be on its way at first
            lambda found: bool(found.mismatches) or [[*each.skipped] for each in found.causes] == [[2]],
        )
    finally:
        for process in processes:
            process.kill()
        wait(processes)
    if change is _leave_out:
        (cause,) = found.causes
        assert (cause.absent, list(cause.skipped)) == ((2,), [2])
        operation = cause.operation
    else:
        (mismatch,) = found.mismatches
        assert list(mismatch.others) == [2]
        operation, other = mismatch.usual, mismatch.others[2]
        assert other.size == 2 * operation.size
    assert (operation.site.name, operation.step) == ("all_reduce", FIRST_STEP)
    assert operation.site.function == "_StepLosses.sum_over_ranks"
