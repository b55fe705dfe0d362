"""DoReMi's second run: a proxy trained on all sources alike, its loss weighted by what the reference does better.

One process. It goes on from its newest checkpoint, which holds the weights of every step so far. The answer is
published as doremi.json in the run's output.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lineage.recipe import RecipeError, parse_table
from lineage.storage.folder import Folder
from trainer.checkpoint.state import Saver, load, load_weights, require, restore, training_state
from trainer.checkpoint.store import Position
from trainer.data.dataset import IGNORED
from trainer.feed.feed import DeviceRows, Feed
from trainer.feed.loading import open_feed
from trainer.joining import Joined, join
from trainer.mix.doremi import averaged, mean_excess, update
from trainer.mix.doremi_job import ANSWER, Answer, DoremiJob
from trainer.mix.swarm import Floats
from trainer.model.attention import document_mask
from trainer.model.optimizer import build_optimizer, clip_gradients, learning_rate
from trainer.model.sizes import model_config
from trainer.options import TrainRecipe
from trainer.parallel.mesh import ParallelModel, initialise, parallel_layout, parallelise_model
from trainer.processes.runtime import Process, collective_timeout, join_process_group, stop_on_sigterm
from trainer.recovery.attempts import Fence
from trainer.recovery.faults import TrainingStoppedError

_SHOWN: Final = 200
"""Steps whose weights the answer shows."""


class _Run:
    """The parts of the run, put together."""

    def __init__(self, job: DoremiJob, recipe: TrainRecipe, process: Process, data: Feed) -> None:
        self.job, self.recipe, self.table, self.data = job, recipe, recipe.train, data
        self.process = process
        self.output = Folder(self.table.output)
        self.checkpoints = self.output.folder("checkpoints")
        config, layout = model_config(self.table.model, data.vocab_size), parallel_layout(self.table, process.device)
        timeout = collective_timeout(self.table.faults.watchdog_seconds)
        self.proxy = parallelise_model(config, layout, process.device, timeout)
        self.reference = parallelise_model(config, layout, process.device, timeout)
        self.reference.module.requires_grad_(False)
        self.optimizer = build_optimizer(self.proxy.module.parameters(), self.table.optimizer)
        self.saver = Saver(self.checkpoints, self.output, self.table.checkpoint, dist.new_group(backend="gloo"))
        self.number = [data.sources.index(source) for source in job.sources]
        self.history = torch.zeros(self.table.steps, len(job.sources), dtype=torch.float64)
        self.excess = torch.zeros(len(job.sources), dtype=torch.float64)

    def start(self, joined: Joined) -> int:
        """The step to go on from."""
        self.attempt = joined.attempt.number
        self.fence = Fence(self.output, self.attempt)
        load_weights(Folder(self.job.reference), self.reference.parameters(), None)
        if joined.position is not None and joined.name is not None:
            folder, state = self.checkpoints.folder(joined.name), self._state()
            require(folder, load(folder, state, None))
            restore(state, self.optimizer, self.process.rank)
        else:
            initialise(self.proxy, self.recipe.seed)
        self.data.start(joined.attempt)
        return joined.attempt.first_step

    def _state(self) -> dict[str, Tensor]:
        own = {"doremi.history": self.history, "doremi.excess": self.excess}
        return training_state(self.proxy.parameters(), self.optimizer, {}, self.process.rank) | own

    def steps_from(self, step: int, stop_requested: Callable[[], bool]) -> bool:
        """Every step that is left; whether it came to the end."""
        try:
            saved = step
            while step < self.table.steps and not stop_requested():
                self.fence.check()
                self._one_step(step)
                step += 1
                if step % self.table.checkpoint.every == 0:
                    saved = self._save(step)
            if saved != step:
                self._save(step)
            self.saver.wait()
        finally:
            self.saver.close()
        return step == self.table.steps

    def _save(self, step: int) -> int:
        self.data.commit(step, ())
        position = Position(
            step=step, attempt=self.attempt, plan_fingerprint=self.data.fingerprint(step),
            order_version=self.data.order_version,
        )  # fmt: skip
        self.saver.save(self._state(), position)
        self.saver.release()
        return step

    def _one_step(self, step: int) -> None:
        micro_batches = self.data.micro_batches(step)
        before = self.history[step - 1].numpy() if step else np.full(len(self.number), 1.0 / len(self.number))
        excess = self._measure(micro_batches)
        weights = update(before, excess, self.job.step_size, self.job.smoothing)
        self.history[step], self.excess[:] = torch.from_numpy(weights), torch.from_numpy(excess)
        self._descend(step, micro_batches, weights)

    @torch.no_grad()
    def _measure(self, micro_batches: Sequence[DeviceRows]) -> Floats:
        """λ of each source over the whole batch, before any of it is learnt from."""
        tokens = []
        for micro in micro_batches:
            counted = micro.labels_BT != IGNORED
            number = micro.sources_B[:, None].expand_as(counted)
            losses = (token_losses(model, micro) for model in (self.proxy, self.reference))
            tokens.append(torch.stack([*(loss[counted].double() for loss in losses), number[counted].double()]))
        proxy, reference, number = torch.cat(tokens, dim=1).cpu().numpy()
        # The mixture holds no other source than those that are weighed.
        place = np.searchsorted(self.number, number.astype(np.int64))
        return mean_excess(proxy, reference, place, self.excess.numpy())

    def _descend(self, step: int, micro_batches: Sequence[DeviceRows], weights: Floats) -> None:
        """One update on Σ weight · mean loss of the source's tokens in the batch."""
        share = torch.zeros(len(self.data.sources), dtype=torch.float32, device=self.process.device)
        share[self.number] = torch.from_numpy(weights).to(share)
        counts = torch.zeros_like(share)
        for micro in micro_batches:
            counts.index_add_(0, micro.sources_B, (micro.labels_BT != IGNORED).sum(-1).to(counts.dtype))
        scale = share / counts.clamp_min(1)
        total = 0.0
        for index, micro in enumerate(micro_batches):
            with self.proxy.synchronise(index == len(micro_batches) - 1):
                loss = (token_losses(self.proxy, micro).sum(-1) * scale[micro.sources_B]).sum()
                torch.autograd.backward(loss)
                total += float(loss.detach())
        if not np.isfinite(total):
            raise TrainingStoppedError(f"the proxy's loss is {total} at step {step}: lower mix.proxy.lr")
        clip_gradients(self.proxy.module.parameters(), self.table.optimizer.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.table.steps, self.table.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def answer(self) -> Answer:
        """What the finished run says."""
        history, names = self.history.numpy(), self.job.sources
        shown = np.unique(np.linspace(0, len(history) - 1, min(_SHOWN, len(history))).astype(int))
        return Answer(
            weights=dict(zip(names, averaged(history).tolist(), strict=True)),
            last=dict(zip(names, history[-1].tolist(), strict=True)),
            excess=dict(zip(names, self.excess.tolist(), strict=True)),
            steps=len(history),
            history=tuple(tuple(row) for row in history[shown].tolist()),
        )


def token_losses(model: ParallelModel, micro: DeviceRows) -> Tensor:
    """The loss of each token, (B, T) in float32; 0 where the label is ignored."""
    mask = document_mask(micro.documents_BT, model.kernel)
    logits_BTV = model.forward(micro.inputs_BT, micro.positions_BT, mask).float()
    losses = F.cross_entropy(
        logits_BTV.flatten(0, 1), micro.labels_BT.flatten(), reduction="none", ignore_index=IGNORED
    )
    return losses.view(micro.labels_BT.shape)


def carry_out(job: DoremiJob, stop_requested: Callable[[], bool]) -> bool:
    """Run or continue the job; whether it is finished and its answer published. Errors as `trainer.loop.train`."""
    recipe = parse_table(TrainRecipe, tomllib.loads(job.recipe))
    process = join_process_group(1, recipe.train.faults.watchdog_seconds)
    with closing(open_feed(recipe, process)) as data:
        run = _Run(job, recipe, process, data)
        joined = join(run.output, run.checkpoints, data, dist.new_group(backend="gloo"))
        finished = run.steps_from(run.start(joined), stop_requested)
        if finished:
            run.output.publish(ANSWER, json.dumps(asdict(run.answer())).encode())
    dist.destroy_process_group()
    return finished


def main(arguments: Sequence[str]) -> int:
    """Carry out the `DoremiJob` on stdin, as JSON. 0: finished or stopped by SIGTERM; 2: the recipe is wrong."""
    stop_requested = stop_on_sigterm()
    payload = json.load(sys.stdin)
    try:
        carry_out(DoremiJob(**payload | {"sources": tuple(payload["sources"])}), stop_requested)
    except RecipeError as error:
        sys.stderr.write(f"sluice: {error}\n")
        return 2
    return 0
