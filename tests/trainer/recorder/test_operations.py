"""What a process waits for is timed and noted, whichever of torch's ways to a collective is taken."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from lineage.storage.folder import Folder
from tests.support.processes.forked import run_forked
from trainer.processes.runtime import Process
from trainer.recorder.diagnosis.reading import read_recorders
from trainer.recorder.diagnosis.stacks import last_stack
from trainer.recorder.files import attempt_folder, node_folder
from trainer.recorder.operations import Operations
from trainer.recorder.recorder import Recorder, RecorderOptions
from trainer.recorder.ring import read_ring
from trainer.telemetry.timing import PhaseClock

SLEEP = 0.2
ONES = 1000


def _all_reduce() -> None:
    dist.all_reduce(torch.ones(ONES))


def _asynchronous() -> None:
    work = dist.all_reduce(torch.ones(ONES), async_op=True)
    assert work is not None
    work.wait()


def _functional() -> None:
    summed = functional.all_reduce(torch.ones(ONES), "sum", dist.group.WORLD)
    assert float(summed.sum()) == 2 * ONES


def _objects() -> None:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, dist.get_rank())
    assert found == [0, 1]


def _batch() -> None:
    other = 1 - dist.get_rank()
    came = torch.zeros(ONES)
    operations = [dist.P2POp(dist.isend, torch.ones(ONES), other), dist.P2POp(dist.irecv, came, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert float(came.sum()) == ONES


def _barrier() -> None:
    dist.barrier()


WAYS: dict[str, Callable[[], None]] = {
    "all_reduce": _all_reduce,
    "asynchronous": _asynchronous,
    "functional": _functional,
    "objects": _objects,
    "batch": _batch,
    "barrier": _barrier,
}


@contextmanager
def _recorder(output: Path, process: Process, clock: PhaseClock) -> Iterator[Recorder]:
    options = RecorderOptions(
        output=Folder(str(output)),
        rank=process.rank,
        world_size=process.world_size,
        attempt=1,
        device="cpu",
        num_operations=64,
        num_steps=8,
    )
    recorder = Recorder(options, clock)
    try:
        with recorder.recording():
            yield recorder
    finally:
        recorder.close()


def _each_way(output: Path, process: Process) -> dict[str, tuple[float, float]]:
    """Own and waiting time of a phase in which rank 1 sleeps before it comes to a collective."""
    clock, times = PhaseClock(process.device), {}
    before = dist.all_reduce
    with _recorder(output, process, clock) as recorder:
        for step, (name, way) in enumerate(WAYS.items()):
            recorder.operations.step = step
            way()  # connections are made at first
            clock.enter("forward")
            clock.data_arrived()
            if process.rank == 1:
                time.sleep(SLEEP)
            way()
            timing = clock.end_step()
            waiting = timing.waiting_seconds()["forward"]
            times[name] = (timing.seconds()["forward"] - waiting, waiting)
            recorder.add_step(step, timing.seconds(), timing.waiting_seconds())
    assert dist.all_reduce is before
    return times


def test_a_planted_sleep_is_own_time_of_its_rank_and_waiting_of_the_other_in_every_way(
    tmp_path: Path,
) -> None:
    first, second = run_forked(tmp_path / "work", 2, partial(_each_way, tmp_path / "out"))
    for way in WAYS:
        (own, waiting), (own_slow, waiting_slow) = first[way], second[way]
        # Bounds that hold on a busy machine too, where a process may come late to anything.
        assert own_slow >= SLEEP > waiting_slow, way
        assert waiting > SLEEP / 2 > own, way
    recorders = read_recorders(Folder(str(tmp_path / "out")))
    assert not os.path.exists(
        node_folder(Folder(str(tmp_path / "out")))
    )  # published, so the node's memory is free again
    for rank, ring in recorders.rings.items():
        noted = [(each.site.name, each.size, each.peer) for each in ring.operations if each.site.phase]
        other, size = 1 - rank, 4 * ONES
        assert noted == [
            ("all_reduce", size, -1), ("all_reduce", size, -1), ("all_reduce", size, -1), ("all_gather_object", -1, -1),
            ("isend", size, other), ("irecv", size, other), ("barrier", -1, -1),
        ]  # fmt: skip
        assert all(each.exit is not None and each.exit >= each.enter for each in ring.operations)
        numbers = [each.group_number for each in ring.operations if each.peer < 0]
        assert numbers == list(range(1, len(numbers) + 1))
        assert [step.step for step in ring.steps] == list(range(len(WAYS)))


def _asked_while_it_waits(output: Path, process: Process) -> None:
    with _recorder(output, process, PhaseClock(process.device)):
        dist.barrier()
        if process.rank == 0:
            dist.all_reduce(torch.ones(1))  # waits, and Python runs nothing of this thread
        else:
            time.sleep(0.2)
            (ring,) = Path(node_folder(Folder(str(output)))).glob("*rank-00000.*.ring")
            os.kill(int(ring.name.split(".")[2]), signal.SIGUSR2)
            name = f"{attempt_folder(1)}/rank-00000.stacks"
            for _ in range(200):
                if (output / name).exists():
                    break
                time.sleep(0.05)
            content = read_ring((output / f"{attempt_folder(1)}/rank-00000.ring").read_bytes())
            stack = last_stack((output / name).read_text(), content.header.thread)
            dist.all_reduce(torch.ones(1))
            assert stack is not None and any(
                frame.function == "_asked_while_it_waits" for frame in stack.frames
            )
            assert content.operations[-1].exit is None and content.operations[-1].site.name == "all_reduce"


def test_a_signal_makes_a_waiting_process_publish_where_it_is(tmp_path: Path) -> None:
    run_forked(tmp_path / "work", 2, partial(_asked_while_it_waits, tmp_path / "out"))
    flight = sorted(path.name for path in (tmp_path / "out" / attempt_folder(1)).glob("flight_rank_*"))
    assert flight == ["flight_rank_0"]


def _asked_behind_its_recorder(output: Path, process: Process) -> None:
    with _recorder(output, process, PhaseClock(process.device)):
        dist.barrier()
    os.kill(os.getpid(), signal.SIGUSR2)


def test_a_process_goes_on_that_is_asked_behind_its_recorder(tmp_path: Path) -> None:
    run_forked(tmp_path / "work", 1, partial(_asked_behind_its_recorder, tmp_path / "out"))


def _killed(output: Path, process: Process) -> None:
    with _recorder(output, process, PhaseClock(process.device)):
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_knew_is_read_on_its_node_and_published_by_the_next_attempt(
    tmp_path: Path,
) -> None:
    output = Folder(str(tmp_path / "out"))
    with pytest.raises(AssertionError, match="-9"):
        run_forked(tmp_path / "work", 1, partial(_killed, tmp_path / "out"))
    assert not output.names("recorder")
    assert read_recorders(output).rings[0].header.rank == 0
    run_forked(tmp_path / "work", 1, partial(_each_alone, tmp_path / "out"))
    assert f"{attempt_folder(1)}/rank-00000.ring" in output.names("recorder")
    assert not os.path.exists(node_folder(output))


def _each_alone(output: Path, process: Process) -> None:
    with _recorder(output, process, PhaseClock(process.device)):
        dist.all_reduce(torch.ones(1))


class FakeStream:
    """A stream that computes, or another one."""

    def __init__(self) -> None:
        self.waited: list[object] = []


class FakeClock:
    """A clock of a GPU, of which it is enough here to know when it was asked to wait."""

    on_gpu, phase = True, "forward"

    def __init__(self, computing: object) -> None:
        self.has_data = False
        self._computing = computing
        self.num_waits = 0

    def computes_on(self, stream: object | None = None) -> bool:
        return stream is self._computing

    def now(self) -> int:
        return 1

    def end_wait(self, begin: int) -> None:
        self.num_waits += begin


def test_on_a_gpu_the_waits_of_the_stream_that_computes_are_counted_once_its_data_is_there() -> None:
    stream, other = FakeStream(), FakeStream()
    clock: Any = FakeClock(stream)
    before = torch.cuda.Stream.wait_event
    operations = Operations(clock, None)
    try:
        wait = operations._stream_wait(lambda stream, event: stream.waited.append(event))
        wait(stream, "batch")
        assert clock.num_waits == 0
        clock.has_data = True
        wait(stream, "gathered")
        wait(other, "copied")
        assert clock.num_waits == 1
        assert (stream.waited, other.waited) == (["batch", "gathered"], ["copied"])
        assert torch.cuda.Stream.wait_event is not before
    finally:
        operations.close()
    assert torch.cuda.Stream.wait_event is before


def _compiled(process: Process) -> list[float]:
    def gathered(x: torch.Tensor) -> torch.Tensor:
        every = [torch.empty_like(x)]
        dist.all_gather(every, 2 * x)
        return every[0] + 1

    operations = Operations(PhaseClock(process.device), None)
    try:
        whole = torch.compile(gathered, backend="aot_eager", fullgraph=True)  # an error where it is broken up
        found: list[float] = whole(torch.ones(2)).tolist()
        return found
    finally:
        operations.close()


@pytest.mark.slow
def test_a_compiled_block_finds_torchs_own_collectives_and_stays_whole(tmp_path: Path) -> None:
    assert run_forked(tmp_path / "work", 1, _compiled) == [[3.0, 3.0]]
