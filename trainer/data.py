"""The data of a run as one rank sees it: corpus, plan and order behind the few questions that the loop asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch

from lineage.recipe import RecipeError
from lineage.storage import Folder
from trainer.attempts import Attempt
from trainer.batches import BatchRecorder
from trainer.blocks import BlockReader, LocalBlocks
from trainer.corpus import Corpus, open_corpus
from trainer.dataset import Dataset, Slice
from trainer.feed import DeviceRows, Feed
from trainer.options import TrainRecipe
from trainer.order import ORDER_VERSION, Order, OrderOptions, Plan, make_plan


def plan_of(recipe: TrainRecipe, corpus: Corpus) -> Plan:
    """The order's plan for this recipe over this corpus; RecipeError says what does not fit."""
    table = recipe.train
    options = OrderOptions(
        seed=recipe.seed,
        seq_len=table.seq_len,
        global_batch=table.global_batch,
        window_blocks=table.order.window_blocks,
        mixture_block=table.order.mixture_block,
        validation=table.validation,
        mixture=tuple((entry.first_step, entry.weights) for entry in table.mixture),
    )
    try:
        return make_plan(corpus.lengths, options)
    except ValueError as error:
        raise RecipeError(f"train: {error}") from error


class RunData:
    """Batches of this rank's slice. `records`: whether this rank writes the record of batches (one of the ranks that
    read the same rows does)."""

    def __init__(self, recipe: TrainRecipe, rank: int, device: torch.device) -> None:
        table = recipe.train
        self._recipe, self._rank, self._device = recipe, rank, device
        self._corpus = open_corpus(table.outs)
        self.plan = plan_of(recipe, self._corpus)
        self._order = Order(self.plan)
        # Tensor parallel ranks are neighbours in the mesh and read the same rows.
        self._part = Slice(rank=rank // table.mesh.tp, num_ranks=table.mesh.dp)
        self._records = table.record_batches and rank % table.mesh.tp == 0
        self._reader = self._open_reader()
        self._dataset = Dataset(self._corpus, self._order, self._reader, self._part, table.skip)
        self.num_rereads = 0

    def _open_reader(self) -> BlockReader:
        return LocalBlocks()

    @property
    def sources(self) -> tuple[str, ...]:
        """Names, in the order that `sources_B` of a micro-batch counts."""
        return self.plan.sources

    @property
    def num_sources(self) -> int:
        """How many sources there are."""
        return len(self.plan.sources)

    @property
    def vocab_size(self) -> int:
        """Ids that may occur lie below this, end-of-text included."""
        return max(self._corpus.tokenizer.vocab_size, self._corpus.tokenizer.eot_id + 1)

    @property
    def order_version(self) -> int:
        """The version of the order's code."""
        return ORDER_VERSION

    def fingerprint(self, step: int) -> str:
        """The plan's fingerprint up to step `step`."""
        return self.plan.fingerprint(step * self.plan.global_batch)

    def start(self, attempt: Attempt) -> None:
        """Called once on every rank, before the first step: rank 0 says what each source will be seen."""
        recorder = None
        if self._records:
            recorder = BatchRecorder(
                Folder(self._recipe.train.output), self._recipe.run.name, attempt.number, self._rank
            )
        self._feed = Feed(self._dataset, self._device, self._recipe.train.micro_batch, recorder)
        if self._rank == 0:
            self._tell_epochs()

    def _tell_epochs(self) -> None:
        table = self._recipe.train
        for source, epochs in self._order.epochs(table.steps * table.global_batch).items():
            sys.stderr.write(f"source {source}: {epochs:.2f} epochs in {table.steps} steps\n")

    def is_listed(self, step: int) -> bool:
        """Whether the recipe's `skip` leaves this batch out."""
        return self._dataset.skipped(step)

    def pass_over(self, step: int) -> None:
        """A listed batch is not fed; the record of batches notes it."""
        self._feed.leave_out(step)

    def micro_batches(self, step: int) -> Sequence[DeviceRows]:
        """This rank's rows of batch `step`. Where a shard is gone, as after a purge, the indexes are read again and
        the rewritten shard is read; `num_rereads` counts that."""
        try:
            return self._feed.micro_batches(step)
        except FileNotFoundError:
            self._reader.close()
            self._reader = self._open_reader()
            if not self._feed.reread(self._reader):
                raise
            self.num_rereads += 1
            return self._feed.micro_batches(step)

    def validation(self) -> Iterator[Sequence[DeviceRows]]:
        """The held-out sequences, a batch at a time."""
        return self._feed.validation()

    def commit(self, step: int, skipped_steps: Sequence[int]) -> None:
        """Make durable what is recorded of the steps below `step`; every rank calls it before each checkpoint."""
        self._feed.flush()

    def close(self) -> None:
        """Let go of threads and files."""
        if hasattr(self, "_feed"):
            self._feed.close()
        self._reader.close()
