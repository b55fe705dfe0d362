"""The feed that the loop takes: micro-batches on the device, from a recipe to a purge in the middle of a
run."""

from __future__ import annotations

import dataclasses
import queue
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from lineage.index.blocks import BLOCK_BYTES
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from tests.support.outputs.synthetic import EOT, made_up_tokens, purge_tokens, write_output
from tests.support.stores.failing_server import Faults, failing_server
from trainer.attempts import Attempt
from trainer.data.blocks import LocalBlocks, Tokens
from trainer.data.cache.folder import cache_folder
from trainer.data.corpus import ShardFile, open_corpus
from trainer.data.dataset import IGNORED, Dataset, Slice
from trainer.data.disks import disk_of
from trainer.feed.feed import Feed, FeedOptions, FeedSource
from trainer.feed.loading import make_order, node_of, open_feed, slice_of
from trainer.options import MixtureTable, OrderTable, TrainRecipe, TrainRunTable, TrainTable
from trainer.processes.runtime import Process
from trainer.recipe_tables.cache import CacheTable
from trainer.recipe_tables.parallelism import ParallelTable

SHARDS = {"web": [made_up_tokens(20_000, 1), made_up_tokens(3_000, 2)]}


def recipe_of(data: str, output: Path, **changes: object) -> TrainRecipe:
    table = TrainTable(
        data=data,
        output=str(output),
        model="debug",
        seq_len=64,
        global_batch=10,
        steps=100,
        validation=0.1,
        order=OrderTable(window_blocks=2, mixture_block=20),
    )
    return TrainRecipe(run=TrainRunTable(name="r"), train=dataclasses.replace(table, **changes))  # type: ignore[arg-type]


def process(rank: int = 0, world_size: int = 1) -> Process:
    return Process(rank=rank, world_size=world_size, device=torch.device("cpu"))


def dataset_of(recipe: TrainRecipe, part: Slice) -> Dataset:
    corpus = open_corpus(recipe.train.outs)
    return Dataset(corpus, make_order(recipe, corpus), LocalBlocks(), part)


def test_a_recipe_gives_the_batches_of_its_order(tmp_path: Path) -> None:
    write_output(tmp_path / "out", SHARDS, store=True)
    recipe = recipe_of(str(tmp_path / "out"), tmp_path / "run")
    feed, straight = open_feed(recipe, process()), dataset_of(recipe, Slice())
    for step in (0, 1, 2, 7, 3):
        batch = straight.batch(step)
        micros = feed.micro_batches(step)
        assert [len(micro.inputs_BT) for micro in micros] == [8, 2]
        assert np.array_equal(torch.cat([micro.inputs_BT for micro in micros]).numpy(), batch.inputs_BT)
        assert np.array_equal(torch.cat([micro.labels_BT for micro in micros]).numpy(), batch.labels_BT)
    feed.close()


class NotedSteps(LocalBlocks):
    """A reader that notes the step of each batch that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: queue.Queue[int] = queue.Queue()

    def at(self, step: int) -> None:
        super().at(step)
        self.steps.put(step)


@pytest.mark.parametrize("prefetch_batches", [1, 2, 5])
def test_as_many_batches_are_in_the_making_as_the_recipe_says(tmp_path: Path, prefetch_batches: int) -> None:
    write_output(tmp_path / "out", SHARDS)
    recipe = recipe_of(str(tmp_path / "out"), tmp_path / "run")
    corpus, reader = open_corpus(recipe.train.outs), NotedSteps()
    source = FeedSource(
        dataset=Dataset(corpus, make_order(recipe, corpus), reader, Slice()), open_reader=lambda _: reader
    )
    options = FeedOptions(
        run="r",
        output=None,  # type: ignore[arg-type]
        device=torch.device("cpu"),
        prefetch_batches=prefetch_batches,
    )
    feed = Feed(source, options)
    feed.micro_batches(3)
    # The thread makes them in order; only the one of step 3 was waited for.
    assert [reader.steps.get(timeout=60) for _ in range(prefetch_batches)] == list(
        range(3, 3 + prefetch_batches)
    )
    feed.close()
    assert reader.steps.empty()


@pytest.mark.parametrize("world", [1, 3, 4, 7])
def test_every_rank_has_as_many_micro_batches_of_the_same_sizes(tmp_path: Path, world: int) -> None:
    write_output(tmp_path / "out", SHARDS)
    recipe = recipe_of(str(tmp_path / "out"), tmp_path / "run")
    shapes, labels = set(), 0
    for rank in range(world):
        source = FeedSource(
            dataset=dataset_of(recipe, Slice(rank=rank, num_ranks=world)), open_reader=lambda _: LocalBlocks()
        )
        options = FeedOptions(run="r", output=None, device=torch.device("cpu"), micro_batch=2)  # type: ignore[arg-type]
        feed = Feed(source, options)
        micros = [*feed.micro_batches(4), *(micro for batch in feed.validation() for micro in batch)]
        shapes.add(tuple(tuple(micro.inputs_BT.shape) for micro in micros))
        labels += sum(int((micro.labels_BT != IGNORED).sum()) for micro in feed.micro_batches(4))
        feed.close()
    assert len(shapes) == 1
    assert labels == int((dataset_of(recipe, Slice()).batch(4).labels_BT != IGNORED).sum())


def test_a_purge_between_two_checkpoints_is_met_where_a_block_is_missing(tmp_path: Path) -> None:
    served = tmp_path / "served"
    write_output(served / "out", SHARDS)
    with failing_server(served, Faults()) as url:
        cache = CacheTable(dir=str(tmp_path / "cache"), max_bytes=4 * BLOCK_BYTES, prefetch_blocks=1)
        recipe = recipe_of(f"{url}/out", tmp_path / "run", cache=cache)
        before = open_feed(recipe, process())
        purge_tokens(served / "out", "web", 0, 0, 20_000)
        after = open_feed(recipe, process())
        for feed in (before, after):
            for step in range(30):
                for micro in feed.micro_batches(step):
                    inputs = micro.inputs_BT.numpy()
                    assert np.all((inputs == EOT) | np.isin(inputs, SHARDS["web"][1]))
        feed.close()
        before.close()
    assert before.dataset.corpus == after.dataset.corpus


def test_a_purge_before_an_evaluation_is_met_where_a_shard_is_gone(tmp_path: Path) -> None:
    write_output(tmp_path / "out", SHARDS)
    recipe = recipe_of(str(tmp_path / "out"), tmp_path / "run")
    feed = open_feed(recipe, process())
    purge_tokens(tmp_path / "out", "web", 1, 0, 3_000)
    held_out = [micro.inputs_BT.numpy() for batch in feed.validation() for micro in batch]
    assert sum(map(len, held_out)) > 30
    for inputs in held_out:
        assert np.all((inputs == EOT) | np.isin(inputs, SHARDS["web"][0]))
    feed.close()


def test_a_purge_before_a_listed_step_is_met_where_its_batch_is_recorded(tmp_path: Path) -> None:
    write_output(tmp_path / "out", SHARDS, store=True)
    recipe = recipe_of(str(tmp_path / "out"), tmp_path / "run", record_batches=True)
    feed = open_feed(recipe, process())
    feed.start(Attempt(number=1, first_step=0, parent=None, began_at=0.0))
    purge_tokens(tmp_path / "out", "web", 1, 0, 3_000)
    for step in range(8):
        feed.pass_over(step)
    feed.close()
    rows = [
        row
        for path in (tmp_path / "run").glob("batches/*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    assert {row["step"] for row in rows} == set(range(8))


def test_a_cache_too_small_for_the_order_is_an_error_of_the_recipe(tmp_path: Path) -> None:
    write_output(tmp_path / "out", SHARDS)
    cache = CacheTable(dir=str(tmp_path / "cache"), max_bytes=1000, prefetch_blocks=1)
    recipe = recipe_of(str(tmp_path / "out"), tmp_path / "run", cache=cache)
    with pytest.raises(RecipeError, match=r"train\.cache: max_bytes is 1000: expected at least \d+"):
        open_feed(recipe, process())


def test_a_mixture_that_does_not_fit_the_data_is_an_error_of_the_recipe(tmp_path: Path) -> None:
    write_output(tmp_path / "out", SHARDS)
    recipe = recipe_of(
        str(tmp_path / "out"), tmp_path / "run", mixture=(MixtureTable(weights={"books": 1.0}),)
    )
    with pytest.raises(RecipeError, match="names source 'books', which the data do not have: expected 'web'"):
        open_feed(recipe, process())


def test_shards_are_cached_only_where_they_are_remote_or_a_folder_is_named(tmp_path: Path) -> None:
    assert cache_folder(recipe_of("out", tmp_path)) is None
    assert cache_folder(recipe_of("s3://bucket/out", tmp_path)) == str(tmp_path / "cache")
    assert cache_folder(recipe_of("out", tmp_path, cache=CacheTable(dir="/nvme"))) == "/nvme"


def test_tensor_parallel_peers_get_the_same_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of("out", tmp_path, workers=8, parallel=ParallelTable(tp=2))
    slices = [slice_of(recipe, process(rank, 8)) for rank in range(8)]
    assert [part.rank for part in slices] == [0, 0, 1, 1, 2, 2, 3, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [part.rank for part in node_of(recipe, slices[5])] == [2, 3]


def test_the_record_of_batches_is_durable_from_each_commit_on(tmp_path: Path) -> None:
    write_output(tmp_path / "out", SHARDS, store=True)
    recipe = recipe_of(str(tmp_path / "out"), tmp_path / "run", record_batches=True)
    feed = open_feed(recipe, process())
    feed.start(Attempt(number=1, first_step=0, parent=None, began_at=0.0))
    for step in range(3):
        feed.micro_batches(step)
    assert not list((tmp_path / "run").glob("batches/*"))
    feed.commit(3, ())
    assert len(list((tmp_path / "run").glob("batches/*.parquet"))) == 1
    feed.close()


class OneSlowShard(LocalBlocks):
    """A disk that is slow where one shard lies."""

    def block(self, shard: ShardFile, number: int) -> Tokens:
        if shard.num_tokens == 3_000:
            time.sleep(0.01)
        return super().block(shard, number)


def test_a_slow_reader_names_the_shard_and_the_disk_that_it_lies_on(tmp_path: Path) -> None:
    write_output(tmp_path / "out", SHARDS, store=True)
    recipe = recipe_of(str(tmp_path / "out"), tmp_path / "run")
    dataset = dataset_of(recipe, Slice())
    slow = Dataset(dataset.corpus, dataset.order, OneSlowShard(), Slice())
    source = FeedSource(dataset=slow, open_reader=lambda changed: LocalBlocks())
    feed = Feed(
        source, FeedOptions(run="r", output=Folder(str(tmp_path / "run")), device=torch.device("cpu"))
    )
    assert feed.slowest_reading() == "it has read nothing"
    for step in range(6):
        feed.micro_batches(step)
    told = feed.slowest_reading()
    path = tmp_path / "out" / "shards" / "web" / "00001.bin"
    assert (
        told.startswith("its reading goes to shard 1 of web: ") and f"{path}, on {disk_of(str(path))}" in told
    )
    feed.close()
    cached = dataclasses.replace(source, cache_folder=str(tmp_path / "cache"))
    feed = Feed(
        cached, FeedOptions(run="r", output=Folder(str(tmp_path / "run")), device=torch.device("cpu"))
    )
    feed.micro_batches(0)
    assert f"through the cache on {disk_of(str(tmp_path))}" in feed.slowest_reading()
    feed.close()
