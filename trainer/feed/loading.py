"""From a recipe to its data: corpus, order, reader, dataset, and the feed that the loop takes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial

import torch.distributed as dist

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.data.blocks import BlockReader, LocalBlocks
from trainer.data.cache.folder import cache_folder
from trainer.data.cache.reader import CachedBlocks, CacheOptions
from trainer.data.corpus import Corpus, open_corpus
from trainer.data.dataset import Dataset, Slice
from trainer.data.recipe_order import make_order
from trainer.feed.feed import Feed, FeedOptions, FeedSource
from trainer.options import TrainRecipe
from trainer.order import Order
from trainer.processes.heard import by_first_rank
from trainer.processes.runtime import Process


def open_reader(recipe: TrainRecipe, corpus: Corpus, order: Order, part: Slice) -> BlockReader:
    """The reader of the corpus's blocks. RecipeError where the cache is too small for the order."""
    folder = cache_folder(recipe)
    if folder is None:
        return LocalBlocks()
    table = recipe.train.cache
    options = CacheOptions(
        folder=folder,
        max_bytes=table.max_bytes,
        prefetch_blocks=table.prefetch_blocks,
        node=node_of(recipe, part),
        num_processes=_local_processes(),
        num_steps=recipe.train.steps,
    )
    try:
        return CachedBlocks(corpus, order, part, options)
    except ValueError as error:
        raise RecipeError(f"train.cache: {error}") from error


def node_of(recipe: TrainRecipe, part: Slice) -> tuple[Slice, ...]:
    """The slices of the ranks on this node, as many as torchrun and Ray Train say there are."""
    mesh = recipe.train.mesh
    # Pipeline stages are the outermost dimension: a node holds one stage's ranks before it holds another's.
    size = max(1, _local_processes() // (mesh.tp * mesh.cp))
    first = part.rank // size * size
    return tuple(
        Slice(rank=rank, num_ranks=part.num_ranks) for rank in range(first, min(first + size, part.num_ranks))
    )


def _local_processes() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def slice_of(recipe: TrainRecipe, process: Process) -> Slice:
    """Which slice of a batch a process gets; tensor, context and pipeline parallel peers get the same
    rows."""
    mesh = recipe.train.mesh
    return Slice(rank=mesh.dp_rank(process.rank), num_ranks=mesh.dp)


def open_feed(
    recipe: TrainRecipe,
    process: Process,
    left_out: tuple[tuple[int, int], ...] = (),
    *,
    order: Order | None = None,
    group: dist.ProcessGroup | None = None,
    check_place: Callable[[], None] = lambda: None,
) -> Feed:
    """The data of the run as this process sees it: all in the group read the indexes as rank 0 found them.
    `left_out`: [first, last] sequence numbers besides those of `train.skip`; `order`: that of the corpus
    where it has been made before. Collective; errors as those of
    `open_corpus` and `make_order`, on every rank."""
    # A purge may be published while the processes start: the account of what is read is one for all of them.
    find = partial(open_corpus, recipe.train.outs)
    corpus = find() if group is None else by_first_rank(find, group)
    order = order or make_order(recipe, corpus)
    return feed_of(recipe, process, corpus, order, left_out, group=group, check_place=check_place)


def feed_group(process: Process) -> dist.ProcessGroup | None:
    """The group in which feeds agree on a new content. Collective."""
    return dist.new_group(backend="gloo") if process.world_size > 1 else None


def feed_of(
    recipe: TrainRecipe,
    process: Process,
    corpus: Corpus,
    order: Order,
    left_out: tuple[tuple[int, int], ...],
    *,
    group: dist.ProcessGroup | None,
    check_place: Callable[[], None] = lambda: None,
) -> Feed:
    """The data of the run as this process sees it, of this content in this order."""
    part = slice_of(recipe, process)
    mesh = recipe.train.mesh
    is_first_peer = process.rank < mesh.tp * mesh.cp * mesh.dp and process.rank % (mesh.tp * mesh.cp) == 0
    source = FeedSource(
        dataset=Dataset(
            corpus, order, open_reader(recipe, corpus, order, part), part, (*recipe.train.skip, *left_out)
        ),
        open_reader=lambda changed: open_reader(recipe, changed, order, part),
        cache_folder=cache_folder(recipe),
    )
    options = FeedOptions(
        run=recipe.run.name,
        output=Folder(recipe.train.output),
        device=process.device,
        micro_batch=recipe.train.micro_batch,
        prefetch_batches=recipe.train.prefetch_batches,
        keeps_account=process.rank == 0,
        fill_up=partial(recipe.train.pipeline.fill_up, pp=mesh.pp) if mesh.pp > 1 else None,
        records=(recipe.train.record_batches or recipe.train.record_losses) and is_first_peer,
        records_losses=recipe.train.record_losses,
        group=group,
        most_validated=_sequences_of(recipe.train.validation_tokens, recipe.train.seq_len),
        check_place=check_place,
    )
    return Feed(source, options)


def _sequences_of(tokens: int | None, seq_len: int) -> int | None:
    return None if tokens is None else math.ceil(tokens / seq_len)
