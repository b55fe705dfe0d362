"""A training run on Ray Train: the same loop, started on the cluster's workers and started again when one is
lost.

Nothing goes through Ray's own checkpoints: each start finds the newest complete one in storage, so a kill at
any moment costs no more than the steps since. Failures are retried as long as the run gets on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow.fs
import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.metrics import Gauge
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, filesystem
from lineage.store.delta import StoreError
from trainer.attempts import FencedOutError, TrainingStoppedError, failures, record_failure
from trainer.checkpoint.store import newest_step
from trainer.evidence.observed import ObserveRequest, ReplayResult
from trainer.in_place.supervise import FINAL_ERRORS, NO_GPUS, result_of, train_supervised
from trainer.in_place.survivor import ParticipantJob, participate
from trainer.options import TrainRecipe
from trainer.processes.following import following
from trainer.processes.heard import by_first_rank, of_every_rank
from trainer.processes.participant import Rendezvous
from trainer.processes.placement import LabelledNode, Workers, label_selectors, split_peers, workers_of
from trainer.processes.result import RankOutcome, TrainingResult
from trainer.processes.runtime import Process, collective_timeout, join_process_group, stopped_by_signals
from trainer.provenance.setup import Hardware
from trainer.run.hardware import hardware_of
from trainer.run.observe import observe
from trainer.run.parts import LaunchContext
from trainer.run.train import train
from trainer.telemetry.gauges import GAUGES, values
from trainer.telemetry.step_report import StepReport

STOP: Final = "stop-requested"
"""The folder in the output with a file for each launch that is to save a checkpoint and end, and no other launch of the
run: a call that waits for its workers is stopped without the one that these would have superseded."""
_STARTS_WITHOUT_PROGRESS: Final = 4
_STOP_POLL_SECONDS: Final = 5.0
_ON_ONE_RANK: Final = (FencedOutError, StoreError)
"""Errors that the process which writes meets, while the others wait for it in a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerJob:
    """What a worker gets. `launch` names this call, `folder` is where it was made: the recipe's paths may be
    relative to it. `request`: of a replay."""

    recipe: TrainRecipe
    launch: str
    folder: str
    on_gpus: bool
    request: ObserveRequest | None = None


def train_on_ray(
    recipe: TrainRecipe,
    check_workers: Callable[[Workers], None] = lambda workers: None,
    *,
    shows_progress: bool = True,
) -> TrainingResult:
    """Train on the Ray that this process is connected to, until the run is done, SIGTERM or SIGINT comes, or
    trying again does not help. Call `preflight.check_training` first: a wrong recipe is found there before any worker
    is started.

    `check_workers` raises where the connected cluster can never hold the workers, which Ray would wait for. With
    `shows_progress` the run's steps are shown on stderr, and why workers ended. CheckpointError, FencedOutError,
    StoreError and TrainingStoppedError as `trainer.run.train.train`; the last also where several starts in a row
    got nowhere."""
    assert ray.is_initialized(), "train_on_ray runs on the Ray that its caller has connected this process to"
    logging.getLogger("ray.train").setLevel(logging.WARNING)
    output = Folder(recipe.train.output)
    workers = workers_of(recipe.train, ray.cluster_resources().get("GPU", 0.0), recipe.train.recovery.spares)
    if not recipe.ray.grows:
        check_workers(workers)
    output.remove_tree(STOP)
    shown = following(output, recipe.train.steps) if shows_progress else contextlib.nullcontext()
    if recipe.train.recovery.mode == "in_place":
        return _train_in_place(recipe, workers, shown)
    job = _job(recipe, workers)
    # Tried again as long as that gets on: `_no_use_in_starting` says when it does not.
    trainer = _trainer(_work, workers, job, _run_config(job.launch, output, "ray", max_failures=-1))
    stop = stop_file(job.launch)
    with stopped_by_signals(lambda: output.publish(stop, b"")), shown:
        ended = trainer.fit()
    output.remove(stop)
    output.remove_tree("ray")
    return result_of(ended.return_value)


def _train_in_place(
    recipe: TrainRecipe, workers: Workers, shown: contextlib.AbstractContextManager[None]
) -> TrainingResult:
    """With actors of our own: whatever Ray Train does about a failure ends the processes that are left
    too."""
    if "GPU" in workers.each:
        raise RecipeError(NO_GPUS, "train.recovery.mode")
    stop = threading.Event()
    with stopped_by_signals(stop.set), shown:
        return train_supervised(recipe, partial(_ActorProcesses, recipe, workers), stop.is_set)


class _ActorProcesses:
    """The processes of a run that recovers in place, as actors. Those that take the place of spares lie where
    an ended one lay."""

    def __init__(self, recipe: TrainRecipe, workers: Workers, job: ParticipantJob, port: int) -> None:
        self._recipe, self._job = recipe, job
        self._host, self._port = ray.util.get_node_ip_address(), port
        each = dict(workers.each) or {"CPU": 0.001}
        self._group = placement_group(
            [each] * workers.num,
            strategy=recipe.train.resources.placement,
            bundle_label_selector=_selectors(recipe.train.resources.near, workers),
        )
        self._options: dict[str, object] = {
            "num_cpus": each.pop("CPU", 0),
            "memory": each.pop("memory", None),
            "resources": each,
        }
        ray.get(self._group.ready())
        self._free = list(reversed(range(workers.num)))
        self._bundles: dict[int, int] = {}
        self._actors: dict[int, Any] = {}
        self._places: dict[int, Any] = {}
        self._work: dict[Any, int] = {}

    def start(self, process: int) -> None:
        bundle = self._bundles[process] = self._free.pop()
        where = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        actor = (
            ray.remote(max_restarts=0)(_ParticipantActor)
            .options(scheduling_strategy=where, **self._options)
            .remote()
        )
        place = Rendezvous(host=self._host, port=self._port, process=process)
        self._actors[process], self._places[process] = actor, actor.place.remote()
        self._work[actor.work.remote(self._job, place, os.getcwd())] = process
        if process == self._recipe.train.num_workers - 1:
            self._check_peers()

    def ended(self, seconds: float) -> Sequence[tuple[int, str]]:
        ready, _ = ray.wait(list(self._work), num_returns=1, timeout=seconds)
        found = []
        for reference in ready:
            process = self._work.pop(reference)
            self._free.append(self._bundles.pop(process))
            try:
                ray.get(reference)
                how = "ended"
            except ray.exceptions.RayActorError:
                how = "was lost"
            except ray.exceptions.RayTaskError as error:
                how = f"ended: {error.cause}"
            ray.kill(self._actors.pop(process))
            found.append((process, how))
        return found

    def kill(self, process: int) -> None:
        if process not in self._actors:
            return
        placed, _ = ray.wait([self._places[process]], timeout=0)
        if not placed:  # it waits for a place, as where the node is gone on which it was to lie
            ray.kill(self._actors[process])
            return
        try:
            node, pid = ray.get(placed[0])
        except ray.exceptions.RayActorError:  # it has ended before it said where it lies
            return
        # Ray asks an actor to end, which a process that was stopped does not hear.
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        ray.remote(max_retries=0)(_kill_process).options(num_cpus=0, scheduling_strategy=there).remote(pid)

    def close(self) -> None:
        # Whatever is left in it ends too: a next start reserves as much, and would wait for what this one keeps.
        remove_placement_group(self._group)

    def _check_peers(self) -> None:
        tp, ranks = self._recipe.train.mesh.tp, range(self._recipe.train.num_workers)
        if tp > 1 and (wrong := split_peers([ray.get(self._places[rank])[0] for rank in ranks], tp)):
            raise RecipeError(wrong)


class _ParticipantActor:
    """A process of a run that recovers in place."""

    def place(self) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def work(self, job: ParticipantJob, place: Rendezvous, folder: str) -> int:
        if os.path.isdir(folder):  # Ray starts workers in a folder of its own
            os.chdir(folder)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return participate(job, place, lambda: (RayMetrics(job.recipe.run.name),))


def _kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def observe_on_ray(
    recipe: TrainRecipe,
    request: ObserveRequest,
    check_workers: Callable[[Workers], None] = lambda workers: None,
) -> tuple[ReplayResult, Hardware]:
    """Do steps of a run again on its layout (`trainer.run.observe`), on the Ray that this process is connected
    to, and what computed them. Errors as of `train_on_ray` before its first step; RuntimeError where a worker
    was lost."""
    assert ray.is_initialized(), (
        "observe_on_ray runs on the Ray that its caller has connected this process to"
    )
    logging.getLogger("ray.train").setLevel(logging.WARNING)
    output = Folder(recipe.train.output)
    workers = workers_of(recipe.train, ray.cluster_resources().get("GPU", 0.0))
    check_workers(workers)
    job = _job(recipe, workers, request)
    # Beside the run's own folder of Ray, which a run that trains meanwhile clears.
    config = _run_config(job.launch, output, f"ray-{job.launch}", max_failures=0)
    try:
        ended = _trainer(_observe, workers, job, config).fit()
    except TrainingFailedError as error:
        raise RuntimeError(f"the replay of {output.url} failed: {error}") from error
    finally:
        output.remove_tree(f"ray-{job.launch}")
    if isinstance(ended.return_value, RankOutcome):
        result_of(ended.return_value)
    seen, hardware = ended.return_value
    return seen, hardware


def _observe(config: Mapping[str, _WorkerJob]) -> tuple[ReplayResult, Hardware] | RankOutcome:
    """What each worker of a replay runs."""
    job = config["job"]
    process = _joined(job)
    assert job.request is not None
    try:
        _check_peers(job.recipe.train.mesh.tp)
        return observe(job.recipe, process, job.request), hardware_of(process.device)
    except tuple(FINAL_ERRORS.values()) as error:
        return RankOutcome.of_error(error)


def _job(recipe: TrainRecipe, workers: Workers, request: ObserveRequest | None = None) -> _WorkerJob:
    """A launch under a name of its own: Ray would otherwise take an earlier launch's end for this one's."""
    launch = f"{recipe.run.name.rsplit('/', 1)[-1]}-{uuid.uuid4().hex[:8]}"
    return _WorkerJob(
        recipe=recipe, launch=launch, folder=os.getcwd(), on_gpus="GPU" in workers.each, request=request
    )


def _trainer(
    work: Callable[[Mapping[str, _WorkerJob]], object], workers: Workers, job: _WorkerJob, config: RunConfig
) -> _Trainer:
    """Ray's trainer of a function on these workers, which is given the job."""
    table = job.recipe.train
    timeout = collective_timeout(table.faults.watchdog_seconds)
    return _Trainer(
        work,
        train_loop_config={"job": job},
        torch_config=TorchConfig(
            backend="cpu:gloo,cuda:nccl" if job.on_gpus else "gloo", timeout_s=int(timeout.total_seconds())
        ),
        scaling_config=ScalingConfig(
            num_workers=workers.num,
            use_gpu=job.on_gpus,
            resources_per_worker=dict(workers.each),
            placement_strategy=table.resources.placement,
            label_selector=_selectors(table.resources.near, workers),
        ),
        run_config=config,
    )


class _Trainer(TorchTrainer):  # type: ignore[misc]
    """TorchTrainer, which leaves SIGINT to `stopped_by_signals`: its own handler ends the workers without a
    checkpoint."""

    def _register_sigint_handler(self, controller: object) -> None:
        """Nothing."""


def _selectors(label: str, workers: Workers) -> list[dict[str, str]] | None:
    """Ray Train numbers nodes in the order of the workers that it asks for: what this gives for a rank holds
    for it."""
    if not label:
        return None
    nodes = [
        LabelledNode(labels=node["Labels"], resources=node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]
    return label_selectors(workers, nodes, label)


def _run_config(launch: str, output: Folder, folder: str, *, max_failures: int) -> RunConfig:
    where: dict[str, object] = {"storage_path": output.at(folder)}
    if output.is_remote:
        handler = pyarrow.fs.FSSpecHandler(filesystem(output.url))
        where["storage_filesystem"] = pyarrow.fs.PyFileSystem(handler)
        where["storage_path"] = output.at(folder).split("://", 1)[1]
    return RunConfig(name=launch, failure_config=FailureConfig(max_failures=max_failures), **where)


def _work(config: Mapping[str, _WorkerJob]) -> RankOutcome:
    """What each worker runs. An error that a new start would meet again is returned: raised, Ray would try
    again."""
    began_at = time.time()  # of the process itself no use: Ray may have kept it ready
    job = config["job"]
    recipe, process = job.recipe, _joined(job)
    output = Folder(recipe.train.output)
    is_first = process.rank == 0
    context = LaunchContext(
        process=process,
        more_sinks=(RayMetrics(recipe.run.name),) if is_first else (),
        stop_requested=_StopFile(output, job.launch) if is_first else lambda: False,
        began_at=began_at,
    )
    try:
        _check_peers(recipe.train.mesh.tp)
        _check_progress(recipe, job.launch)
        return RankOutcome(result=train(recipe, context))
    except tuple(FINAL_ERRORS.values()) as error:
        outcome = RankOutcome.of_error(error)
        if isinstance(error, _ON_ONE_RANK) and not output.exists(_error_file(job.launch)):
            # This worker's failure makes Ray end the others; the start that follows finds why, and ends on
            # every rank.
            output.publish(_error_file(job.launch), json.dumps(outcome.to_json()).encode())
            raise
        return outcome
    except BaseException as error:
        record_failure(output, process.rank, f"{type(error).__name__}: {error}")
        raise


def _joined(job: _WorkerJob) -> Process:
    """This worker among those of the job."""
    if os.path.isdir(job.folder):  # Ray starts workers in a folder of its own
        os.chdir(job.folder)
    if not job.on_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # those of the node are not ours
    return join_process_group(job.recipe.train.num_workers, job.recipe.train.faults.watchdog_seconds)


def _check_peers(tp: int) -> None:
    """RecipeError on every rank where tensor-parallel peers were put on different nodes."""
    nodes = of_every_rank(f"node {ray.get_runtime_context().get_node_id()[:12]}", None)
    if wrong := split_peers(nodes, tp):
        raise RecipeError(wrong)


def _check_progress(recipe: TrainRecipe, launch: str) -> None:
    """On every rank: the error that ended this launch where one did; TrainingStoppedError where its last
    starts all found the run at the same step, or where a stop was asked for between two starts."""

    def look() -> None:
        output = Folder(recipe.train.output)
        if output.exists(_error_file(launch)):
            result_of(RankOutcome.from_json(json.loads(output.read(_error_file(launch)))))
        if message := _no_use_in_starting(recipe, output, launch):
            raise TrainingStoppedError(message)

    by_first_rank(look, None, *FINAL_ERRORS.values())


def _error_file(launch: str) -> str:
    return f"ray/ended/{launch}.json"


def _no_use_in_starting(recipe: TrainRecipe, output: Folder, launch: str) -> str | None:
    if output.exists(stop_file(launch)):
        return "a stop was asked for while the workers were being started again; the same call goes on"
    step = newest_step(recipe)
    starts = f"ray/starts/{launch}"
    before = [int(output.read(name)) for name in output.names(starts)]
    output.publish(f"{starts}/{len(before):06d}", str(step).encode())
    if before[-_STARTS_WITHOUT_PROGRESS:] != [step] * _STARTS_WITHOUT_PROGRESS:
        return None
    errors = "; ".join([*failures(output).values()][-3:]) or "none recorded: workers were killed"
    return (
        f"{_STARTS_WITHOUT_PROGRESS} starts in a row got from step {step} to no new"
        f" checkpoint. Last errors: {errors}"
    )


def stop_file(launch: str) -> str:
    """The file that asks this launch to end."""
    return f"{STOP}/{launch}"


class _StopFile:
    """Whether the stop file of a launch is there; an object store is asked every few seconds only."""

    def __init__(self, output: Folder, launch: str) -> None:
        self._output, self._name = output, stop_file(launch)
        self._asked = 0.0
        self._found = False

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self._found and (not self._output.is_remote or now - self._asked > _STOP_POLL_SECONDS):
            self._asked, self._found = now, self._output.exists(self._name)
        return self._found


class RayMetrics:
    """Gauges that Ray exports to Prometheus, named ray_sluice_train_*, with the run as a tag (see
    telemetry/gauges)."""

    def __init__(self, run: str) -> None:
        self._tags = {"run": run}
        self._gauges = {
            name: Gauge(f"sluice_train_{name}", description=description, tag_keys=("run", *labels))
            for name, (description, labels) in GAUGES.items()
        }
        self._num_skipped = 0

    def write(self, report: StepReport) -> None:
        for value in values(report):
            self._gauges[value.name].set(value.value, tags={**self._tags, **value.labels})
        self._num_skipped += report.skipped is not None
        self._gauges["skipped"].set(float(self._num_skipped), tags=self._tags)

    def flush(self) -> None:
        """Ray collects gauges by itself."""

    def close(self) -> None:
        """Nothing is held."""
