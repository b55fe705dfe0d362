"""DoReMi's second run: a proxy trained on all sources alike, its loss weighted by what the reference does
better.

One process. It goes on from its newest checkpoint, which holds the weights of every step so far. The answer
is published as doremi.json in the run's output."""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lineage.recipe import RecipeError, parse_table
from lineage.storage.folder import Folder
from trainer.attempts import Attempt, Fence, TrainingStoppedError
from trainer.checkpoint.state import Saver, check_together, load_weights, load_whole, restore, training_state
from trainer.checkpoint.store import Position
from trainer.data.dataset import IGNORED
from trainer.feed.feed import Feed
from trainer.feed.loading import open_feed
from trainer.mix.doremi import averaged, mean_excess, update
from trainer.mix.doremi_job import ANSWER, Answer, DoremiJob
from trainer.mix.swarm import Floats
from trainer.model.config.sizes import model_config
from trainer.model.rows import DeviceRows
from trainer.optim.learning_rate import learning_rate
from trainer.optim.optimizer import Optimizer
from trainer.options import TrainRecipe, TrainTable
from trainer.parallel.layout import parallel_layout
from trainer.parallel.mesh import ParallelModel, parallelise_model
from trainer.processes.runtime import Process, collective_timeout, join_process_group, stop_on_signal
from trainer.run.first_weights import load_first_weights
from trainer.run.joining import Joined, join

_SHOWN: Final = 200
"""Steps whose weights the answer shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoremiParts:
    """What the run is made of, from its first step to its last. `history` (steps, sources) and `excess`
    (sources,) are written in place and kept in checkpoints; `number`: the feed's number of each source of the
    job; `control`: a gloo group."""

    job: DoremiJob
    recipe: TrainRecipe
    process: Process
    data: Feed
    output: Folder
    checkpoints: Folder
    control: dist.ProcessGroup
    proxy: ParallelModel
    reference: ParallelModel
    optimizer: Optimizer
    saver: Saver
    number: list[int]
    history: Tensor
    excess: Tensor

    @property
    def table(self) -> TrainTable:
        """The recipe's [train]."""
        return self.recipe.train


def run_job(job: DoremiJob, stop_requested: Callable[[], bool]) -> bool:
    """Run or continue the job; whether it is finished and its answer published. Errors as
    `trainer.run.train.train`."""
    recipe = parse_table(TrainRecipe, tomllib.loads(job.recipe))
    process = join_process_group(1, recipe.train.faults.watchdog_seconds)
    began_at = time.time()
    with closing(open_feed(recipe, process)) as data:
        run = _build(job, recipe, process, data)
        joined = join(
            run.output, run.checkpoints, data, run.proxy.config, run.control, recipe=recipe, began_at=began_at
        )
        _load_state(run, joined)
        data.start(joined.attempt)
        finished = _run_steps(run, joined.attempt, stop_requested)
        if finished:
            run.output.publish(ANSWER, json.dumps(asdict(_answer(run))).encode())
    dist.destroy_process_group()
    return finished


def _build(job: DoremiJob, recipe: TrainRecipe, process: Process, data: Feed) -> DoremiParts:
    table = recipe.train
    output = Folder(table.output)
    checkpoints = output.folder("checkpoints")
    config, layout = model_config(table.model, data.vocab_size), parallel_layout(table, process.device)
    timeout = collective_timeout(table.faults.watchdog_seconds)
    proxy = parallelise_model(config, layout, process.device, timeout)
    reference = parallelise_model(config, layout, process.device, timeout)
    reference.parts[0].requires_grad_(False)
    return DoremiParts(
        job=job,
        recipe=recipe,
        process=process,
        data=data,
        output=output,
        checkpoints=checkpoints,
        control=dist.new_group(backend="gloo"),
        proxy=proxy,
        reference=reference,
        optimizer=Optimizer(proxy.parameters(), table.optimizer, proxy.groups.stage, proxy.config.latent),
        saver=Saver(checkpoints, output, table.checkpoint, dist.new_group(backend="gloo"), steps=table.steps),
        number=[data.sources.index(source) for source in job.sources],
        history=torch.zeros(table.steps, len(job.sources), dtype=torch.float64),
        excess=torch.zeros(len(job.sources), dtype=torch.float64),
    )


def _every(table: TrainTable) -> int:
    """Steps between checkpoints. RecipeError where the run would have to find them itself, which a proxy does
    not."""
    if table.checkpoint.every == "auto":
        raise RecipeError(
            'train.checkpoint.every = "auto": expected a number of steps for a proxy of doremi',
            "train.checkpoint.every",
        )
    return table.checkpoint.every


def _load_state(run: DoremiParts, joined: Joined) -> None:
    """The reference's weights; the proxy's state from the newest checkpoint, or those that its run begins
    with."""
    reference = Folder(run.job.reference)
    check_together(reference, run.control)
    load_weights(reference, run.reference.parameters(), run.reference.buffers(), None)
    if joined.position is None or joined.name is None:
        load_first_weights(run.proxy, run.recipe, run.control)
        return
    folder, state = run.checkpoints.folder(joined.name), _state(run)
    load_whole(folder, state, None)
    restore(state, run.optimizer)


def _state(run: DoremiParts) -> dict[str, Tensor]:
    own = {"doremi.history": run.history, "doremi.excess": run.excess}
    return training_state(run.proxy.parameters(), run.optimizer, {}, run.proxy.buffers()) | own


def _run_steps(run: DoremiParts, attempt: Attempt, stop_requested: Callable[[], bool]) -> bool:
    """Every step that is left; whether it came to the end."""
    fence = Fence(run.output, attempt.number)
    step = saved = attempt.first_step
    try:
        while step < run.table.steps and not stop_requested():
            fence.check()
            _one_step(run, step)
            step += 1
            if step % _every(run.table) == 0:
                saved = _save(run, attempt, step)
        if saved != step:
            _save(run, attempt, step)
        run.saver.wait()
    finally:
        run.saver.close()
    return step == run.table.steps


def _save(run: DoremiParts, attempt: Attempt, step: int) -> int:
    run.data.commit(step, ())
    position = Position(
        step=step,
        attempt=attempt.number,
        plan_fingerprint=run.data.fingerprint(step),
        order_version=run.data.order_version,
        model=run.proxy.config,
    )
    run.saver.save(_state(run), position)
    run.saver.release()
    return step


def _one_step(run: DoremiParts, step: int) -> None:
    micro_batches = run.data.micro_batches(step)
    before = run.history[step - 1].numpy() if step else np.full(len(run.number), 1.0 / len(run.number))
    excess = _measure(run, micro_batches)
    weights = update(before, excess, run.job.step_size, run.job.smoothing)
    run.history[step], run.excess[:] = torch.from_numpy(weights), torch.from_numpy(excess)
    _descend(run, step, micro_batches, weights)


@torch.no_grad()
def _measure(run: DoremiParts, micro_batches: Sequence[DeviceRows]) -> Floats:
    """λ of each source over the whole batch, before any of it is learnt from."""
    tokens = []
    for micro in micro_batches:
        counted = micro.labels_BT != IGNORED
        number = micro.sources_B[:, None].expand_as(counted)
        losses = (
            model.forward(model.micro_batch(micro)).of_tokens_BT for model in (run.proxy, run.reference)
        )
        tokens.append(torch.stack([*(loss[counted].double() for loss in losses), number[counted].double()]))
    proxy, reference, number = torch.cat(tokens, dim=1).cpu().numpy()
    # The mixture holds no other source than those that are weighed.
    place = np.searchsorted(run.number, number.astype(np.int64))
    return mean_excess(proxy, reference, place, run.excess.numpy())


def _descend(run: DoremiParts, step: int, micro_batches: Sequence[DeviceRows], weights: Floats) -> None:
    """One update on Σ weight · mean loss of the source's tokens in the batch; experts are evened out as in
    any run."""
    share = torch.zeros(len(run.data.sources), dtype=torch.float32, device=run.process.device)
    share[run.number] = torch.from_numpy(weights).to(share)
    counts = torch.zeros_like(share)
    for rows in micro_batches:
        counts.index_add_(0, rows.sources_B, rows.num_counted.to(counts.dtype))
    scale = share / counts.clamp_min(1)
    total, routings = 0.0, []
    for index, rows in enumerate(micro_batches):
        micro = run.proxy.micro_batch(
            rows, 1 / counts.sum().clamp_min(1), weights_B1=scale[rows.sources_B][:, None]
        )
        with run.proxy.synchronise(index == len(micro_batches) - 1):
            loss = run.proxy.forward(micro).objective
            torch.autograd.backward(loss)
            total += float(loss.detach())
        routings += [micro.routing] if micro.routing is not None else []
    if not np.isfinite(total):
        raise TrainingStoppedError(f"the proxy's loss is {total} at step {step}: lower mix.proxy.lr")
    run.proxy.clip_gradients(run.table.optimizer.clip)
    run.optimizer.prepare()
    rate = partial(learning_rate, step, run.table.steps, run.table.optimizer)
    run.optimizer.step(rate, torch.zeros_like(scale[0]))
    routed = run.proxy.expert_figures(routings)
    if routed is not None:
        run.proxy.balance_experts(routed, verdict=torch.zeros_like(scale[0]))


def _answer(run: DoremiParts) -> Answer:
    """What the finished run says."""
    history, names = run.history.numpy(), run.job.sources
    shown = np.unique(np.linspace(0, len(history) - 1, min(_SHOWN, len(history))).astype(int))
    return Answer(
        weights=dict(zip(names, averaged(history).tolist(), strict=True)),
        last=dict(zip(names, history[-1].tolist(), strict=True)),
        excess=dict(zip(names, run.excess.tolist(), strict=True)),
        steps=len(history),
        history=tuple(tuple(row) for row in history[shown].tolist()),
    )


def main(arguments: Sequence[str]) -> int:
    """Run the `DoremiJob` on stdin, as JSON. 0: finished or stopped by a signal; 2: the recipe is wrong."""
    stop_requested = stop_on_signal()
    payload = json.load(sys.stdin)
    try:
        run_job(DoremiJob(**payload | {"sources": tuple(payload["sources"])}), stop_requested)
    except RecipeError as error:
        sys.stderr.write(f"sluice: {error}\n")
        return 2
    return 0
