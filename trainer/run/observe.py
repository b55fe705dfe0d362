"""Steps done once more to look at them: from a checkpoint (or the first weights) up to a step, and nothing is
written.

No attempt is claimed and no fact recorded: the run stays as it is, and may even be training. What the last
step did is kept by row, by document of each row and by layer."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from lineage.storage.folder import Folder
from trainer.checkpoint.state import check_together
from trainer.checkpoint.store import checkpoint_folder, read_position
from trainer.data.dataset import IGNORED, document_layout
from trainer.data.row_loss import RowLoss
from trainer.evidence.observed import DocumentLoss, ObservedStep, ObserveRequest, ReplayResult
from trainer.feed.feed import Feed
from trainer.feed.loading import feed_group, open_feed
from trainer.model.config.sizes import model_config
from trainer.options import TrainRecipe
from trainer.parallel.checks import check_layout
from trainer.parallel.layout import parallel_layout
from trainer.parallel.mesh import parallelise_model
from trainer.processes.heard import by_first_rank
from trainer.processes.runtime import Process, collective_timeout
from trainer.recovery.faults import STEP_VERDICTS
from trainer.recovery.repeated import left_out, skip_counter
from trainer.run.assemble import load_weights, step_context
from trainer.run.step import TokenLosses, train_step
from trainer.run.steps import seed_step
from trainer.telemetry.timing import PhaseClock


def observe(recipe: TrainRecipe, process: Process, request: ObserveRequest) -> ReplayResult:
    """Do steps of a run again and say what they came to. Collective. Errors as of `trainer.run.train.train` before
    its first step."""
    if request.num_threads and process.device.type == "cpu":
        torch.set_num_threads(request.num_threads)
    step = request.step
    table = recipe.train
    output = Folder(table.output)
    folder = None
    if request.checkpoint is not None:
        folder = checkpoint_folder(recipe).folder(request.checkpoint)
    timeout = collective_timeout(table.faults.watchdog_seconds)
    control = dist.new_group(backend="gloo", timeout=timeout)
    passed_over = by_first_rank(partial(left_out, output), control)
    with closing(open_feed(recipe, process, passed_over, group=feed_group(process))) as feed:
        config = model_config(table.model, feed.vocab_size)
        layout = parallel_layout(table, process.device)
        check_layout(table, config)
        model = parallelise_model(config, layout, process.device, timeout)
        if folder is not None:
            check_together(folder, control)
        position = None if folder is None else read_position(folder)
        skips = skip_counter(table, position)
        context = step_context(recipe, feed, model, skips, PhaseClock(model.device))
        context.keeps_rows = True
        load_weights(context, recipe, folder, num_rows=feed.num_rows, control=control)
        steps = []
        tokens = TokenLosses(table.global_batch, table.seq_len, model.device)
        layers: dict[str, float] = {}
        for number in range(0 if position is None else position.step, step + 1):
            if feed.is_listed(number) and number < step:
                steps.append(ObservedStep(step=number, skipped="listed"))
                continue
            context.token_losses = tokens if number == step else None
            seed_step(recipe.seed, number, model.dp_rank)
            outcome, _ = train_step(context, number, lambda done, outcome: None)
            figures = outcome.figures.read()
            if number == step:
                layers = model.layer_norms(outcome.layers)
            assert figures.rows_2G is not None, "asked for above"
            reason = STEP_VERDICTS[figures.verdict]
            if number < step:
                skips.note(number, reason)
            steps.append(
                ObservedStep(
                    step=number,
                    loss=figures.loss,
                    gradient_norm=figures.gradient_norm,
                    lr=outcome.lr,
                    skipped=reason,
                    losses_by_source={
                        name: total / count
                        for name, total, count in zip(
                            feed.sources, figures.losses, figures.counts, strict=True
                        )
                        if count
                    },
                    rows=tuple(RowLoss(total, int(count)) for total, count in figures.rows_2G.T.tolist()),
                )
            )
        return ReplayResult(steps=tuple(steps), documents=_documents(feed, step, tokens), layers=layers)


def _documents(feed: Feed, step: int, tokens: TokenLosses) -> tuple[DocumentLoss, ...]:
    """The documents of a step that have labels, by row and place. Every rank reads the whole batch."""
    size = feed.global_batch
    batch = feed.dataset.sequences(np.arange(step * size, (step + 1) * size, dtype=np.int64))
    _, documents_BT = document_layout(batch.inputs_BT, feed.dataset.corpus.tokenizer.eot_id)
    sums = tokens.sums.cpu().numpy()
    found = []
    for row in range(size):
        numbers, first, which = np.unique(documents_BT[row], return_index=True, return_inverse=True)
        counts = np.bincount(which, batch.labels_BT[row] != IGNORED).astype(np.int64)
        losses = sums[row, numbers]
        rows = zip(first.tolist(), counts.tolist(), losses.tolist(), strict=True)
        found += [DocumentLoss(row, *one) for one in rows if one[1]]
    return tuple(found)
