"""Runs the proxies of an ablation, as many at once as the machine or the cluster holds.

Each is an ordinary training run in a process of its own. What is finished is never run again, and what was
killed goes on from its newest checkpoint: the same call continues. No proxy outlives the call."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import IO, Final

from lineage.recipe import as_toml
from lineage.storage.folder import object_store_settings
from lineage.storage.lock import hold
from trainer.mix.design import Point
from trainer.mix.doremi_job import Answer, doremi_job, read_answer
from trainer.mix.proxies import Ablation, AblationError, pending, publish_result, write_design, write_tables
from trainer.processes.placement import Workers, workers_of
from trainer.recipe_tables.failures import RecoveryTable
from trainer.recipe_tables.parallelism import ParallelTable

_PRELOADED: Final = ("pyarrow.dataset", "torch.utils.tensorboard")
"""What a training run imports once it runs, half a second of each."""
_RETRIES: Final = 3
"""How often a proxy is started again whose node is lost."""
_STOP_SECONDS: Final = 60.0
"""How long a proxy on a cluster may take to save and end."""
_MOST_SAID: Final = 800
"""Characters of what a process said that its error tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyProcess:
    """A process to carry out: `main(arguments)` of a module, what it reads on stdin, and what it gets.
    `preload` are modules that `main` imports on its way."""

    name: str
    module: str
    arguments: tuple[str, ...]
    stdin: str
    threads: int
    environment: tuple[tuple[str, str], ...] = ()
    preload: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationLaunch:
    """How proxy runs are started. `num_parallel`: at once on this machine (None: as many as fit; a cluster
    decides by `train.resources`). Where the recipe names a cluster, `connect` connects this process to it for
    the time of a block (nothing: it is connected), and `check_workers` raises where that cluster can never
    hold a run."""

    num_parallel: int | None = None
    connect: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    say: Callable[[str], None] = lambda line: None
    check_workers: Callable[[Workers], None] = lambda workers: None


def run_ablation(ablation: Ablation, launch: AblationLaunch) -> None:
    """Run what is pending, then write the tables.

    AblationError where a proxy run failed, or SIGTERM came: those that had begun are asked to save and end
    first. HeldError where another call runs the same ablation."""
    with hold(ablation.folder, "sluice mix run"):
        write_design(ablation)
        waiting = pending(ablation)
        launch.say(f"{len(ablation.points) - len(waiting)} of {len(ablation.points)} runs are done")
        carry_out(ablation, waiting, launch)
        write_tables(ablation)


def carry_out(ablation: Ablation, points: Sequence[Point], launch: AblationLaunch) -> None:
    """Run these points and publish the result of each as it ends. Errors as `run_ablation`."""
    by_name = {point.name: point for point in points}
    left = len(points)
    with contextlib.closing(
        run_all(ablation, [proxy_process(ablation, point) for point in points], launch)
    ) as ended:
        for name in ended:
            publish_result(ablation, by_name[name])
            left -= 1
            launch.say(f"{name} is done, {left} left")


def proxy_process(ablation: Ablation, point: Point) -> ProxyProcess:
    """The process of one proxy run."""
    return ProxyProcess(
        name=point.name,
        module="trainer.command",
        arguments=("/dev/stdin",),
        stdin=as_toml(ablation.proxy(point)),
        threads=_threads(ablation),
        preload=_PRELOADED,
    )


def _threads(ablation: Ablation) -> int:
    """Of one process: so many, whatever the machine has, since sums in another order would be other
    losses."""
    return max(int(ablation.recipe.train.resources.cpus), 1)


def run_doremi(ablation: Ablation, launch: AblationLaunch) -> Answer:
    """DoReMi over the sources that may be trained on: its reference is the ablation's run of the natural
    mixture, its proxy one more run on an even mixture. Both go on where they were, and neither is repeated.
    Errors as `run_ablation`."""
    with hold(ablation.folder, "sluice mix doremi"):
        write_design(ablation)
        reference = ablation.points[0]
        if reference in pending(ablation):
            launch.say("the reference: a run of the natural mixture")
            carry_out(ablation, [reference], launch)
        job, output = doremi_job(ablation, reference)
        answer = read_answer(output)
        if answer is None:
            launch.say("the proxy: a run of the even mixture, its loss weighted")
            work = ProxyProcess(
                name="doremi",
                module="trainer.mix.doremi_run",
                arguments=(),
                stdin=json.dumps(asdict(job)),
                threads=_threads(ablation),
            )
            with contextlib.closing(run_all(ablation, [work], launch)) as ended:
                list(ended)
            answer = read_answer(output)
        if answer is None:
            raise AblationError("the proxy was stopped: the same call continues")
        return answer


def run_all(
    ablation: Ablation, work: Sequence[ProxyProcess], launch: AblationLaunch
) -> Generator[str, None, None]:
    """The name of each piece of work as it ends. Close it early and the rest is asked to save and end."""
    if not work:
        return
    with _terminable():
        if ablation.recipe.ray.address == "local":
            yield from _on_this_machine(work, launch.num_parallel or _num_that_fit(ablation))
        else:
            with launch.connect():
                yield from _on_cluster(ablation, work, launch.check_workers)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises AblationError, as long as this lasts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise AblationError("SIGTERM: nothing is lost, the same call again continues")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _num_that_fit(ablation: Ablation) -> int:
    """Proxies that fit this machine at once: one a GPU, or what `train.resources.cpus` leaves of the
    processors."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.device_count()
    cpus = ablation.recipe.ray.num_cpus or len(os.sched_getaffinity(0))
    return max(cpus // _threads(ablation), 1)


def _on_this_machine(work: Sequence[ProxyProcess], num_parallel: int) -> Generator[str, None, None]:
    """All in processes forked from one, which has imported what they need: each would take longer for that
    than a short run for its steps."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
    server = _start(work, num_parallel, log)
    try:
        assert server.stdout is not None
        for _ in work:
            line = server.stdout.readline()
            if not line:
                code = server.wait()
                log.seek(0)
                said = log.read().decode(errors="replace").strip()
                raise AblationError(
                    f"the process of the proxy runs ended with exit code {code}: {last_lines(said)}"
                )
            ended = json.loads(line)
            if ended["code"] != 0:
                raise AblationError(
                    f"proxy run {ended['name']} ended with exit code {ended['code']}: {last_lines(ended['said'])}"
                )
            yield ended["name"]
    finally:
        server.terminate()
        server.wait()
        log.close()


def last_lines(said: str) -> str:
    """The end of what a process said, of 800 characters at most: whole lines, or the end of one that is longer."""
    said = said.strip()
    begun, _, whole = said[-_MOST_SAID - 1 :].partition("\n")
    return said if len(said) <= _MOST_SAID else whole or begun[-_MOST_SAID:]


def _start(work: Sequence[ProxyProcess], num_parallel: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own: Ctrl-C reaches the parent alone, which signals it to save
    and end."""
    (threads,) = {one.threads for one in work}
    (settings,) = {one.environment for one in work}
    own = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(sys.path)}
    pieces = [
        {
            "name": one.name,
            "module": one.module,
            "arguments": list(one.arguments),
            "stdin": one.stdin,
            "preload": list(one.preload),
        }
        for one in work
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "trainer.mix.child", str(os.getpid()), str(num_parallel)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**os.environ, **dict(settings), **own},
        start_new_session=True,
    )
    assert server.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once: its exit code says so
        server.stdin.write(json.dumps(pieces).encode())
        server.stdin.close()
    return server


def _on_cluster(
    ablation: Ablation, work: Sequence[ProxyProcess], check_workers: Callable[[Workers], None]
) -> Generator[str, None, None]:
    """Every run as a Ray task with a process of its own; Ray runs as many at once as `train.resources` lets
    it."""
    import ray

    assert ray.is_initialized(), "an ablation on a cluster runs on the Ray that its caller has connected"
    alone = replace(ablation.recipe.train, workers=None, parallel=ParallelTable(), recovery=RecoveryTable())
    workers = workers_of(alone, ray.cluster_resources().get("GPU", 0.0))
    check_workers(workers)
    settings = tuple(object_store_settings().items())
    remote = ray.remote(max_retries=_RETRIES, **_ray_options(workers.each))(_run_one)
    # The dashboard shows each run by its name.
    tasks = {
        remote.options(name=f"mix.{one.name}").remote(replace(one, environment=settings)): one.name
        for one in work
    }
    try:
        while tasks:
            done, _ = ray.wait(list(tasks), num_returns=1)
            name = tasks.pop(done[0])
            try:
                ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, AblationError) else error from None
            except ray.exceptions.RayError as error:
                raise AblationError(
                    f"proxy run {name}: its worker was lost {_RETRIES + 1} times: {error}"
                ) from error
            yield name
    finally:
        for task in tasks:
            ray.cancel(task)
        if tasks:
            ray.wait(list(tasks), num_returns=len(tasks), timeout=_STOP_SECONDS)


def _ray_options(each: Mapping[str, float]) -> dict[str, object]:
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, object] = {"num_cpus": 0} | {named[name]: each[name] for name in each if name in named}
    return options | {"resources": {name: amount for name, amount in each.items() if name not in named}}


def _run_one(work: ProxyProcess) -> None:
    """One run inside a Ray task, on the GPU that the task was given."""
    for _ in _on_this_machine([work], 1):
        pass
