"""The block cache: bounded, shared, crash-safe, and right whatever the network and the disk do."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import numpy as np
import pytest

from lineage.index.blocks import BLOCK_BYTES, BLOCK_TOKENS
from lineage.storage.folder import StorageError
from tests.support.outputs.synthetic import made_up_tokens, write_output
from tests.support.processes.fork_server import fork_server
from tests.support.stores.failing_server import Faults, failing_server
from tests.support.stores.peaks import peak_bytes
from trainer.data.blocks import DamagedBlockError, LocalBlocks
from trainer.data.cache import fetch
from trainer.data.cache.fetch import fetch_block
from trainer.data.cache.folder import CacheFolder, DiskError, key_of
from trainer.data.cache.reader import CachedBlocks, CacheOptions, needed_bytes
from trainer.data.cache.schedule import NEVER, Schedule
from trainer.data.corpus import Corpus, open_corpus
from trainer.data.dataset import Dataset, Slice
from trainer.data.figures import ReadFigures
from trainer.options import DataTable
from trainer.order import Order, OrderOptions, plan_order

WHOLE = Slice()
KEYS = [f"{number:032x}-00000-100" for number in range(10)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket with an output of eight blocks, the last of each shard short."""
    root = tmp_path_factory.mktemp("served")
    shards = [made_up_tokens(3 * BLOCK_TOKENS + 70_000, seed) for seed in (1, 2)]
    write_output(root / "bucket" / "out", {"a": shards})
    return root


@pytest.fixture
def local(root: Path) -> Corpus:
    return corpus_on_disk(root)


def corpus_on_disk(root: Path) -> Corpus:
    return open_corpus([DataTable(out=str(root / "bucket" / "out"))])


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_quickly(monkeypatch)


def retry_quickly(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(fetch, "_FIRST_PAUSE", 0.002)
    patched.setattr(fetch, "_LONGEST_PAUSE", 0.02)


def order_of(corpus: Corpus, **changes: int) -> Order:
    options = {"seed": 1, "seq_len": 16_384, "global_batch": 16, "window_blocks": 1, **changes}
    return Order(plan_order(corpus.lengths, OrderOptions(**options)))  # type: ignore[arg-type]


def options_of(
    folder: Path, num_blocks: int = 3, prefetch_blocks: int = 1, node: tuple[Slice, ...] = ()
) -> CacheOptions:
    return CacheOptions(
        folder=str(folder), max_bytes=num_blocks * BLOCK_BYTES, prefetch_blocks=prefetch_blocks, node=node
    )


def assert_same_batches(
    corpus: Corpus,
    local: Corpus,
    reader: CachedBlocks,
    steps: int,
    part: Slice = WHOLE,
    *,
    in_step: Callable[[], object] = lambda: None,
) -> None:
    order = order_of(local)
    through, straight = Dataset(corpus, order, reader, part), Dataset(local, order, LocalBlocks(), part)
    for step in range(steps):
        got, expected = through.batch(step), straight.batch(step)
        assert np.array_equal(got.inputs_BT, expected.inputs_BT)
        assert np.array_equal(got.labels_BT, expected.labels_BT)
        in_step()


@pytest.mark.parametrize("protocol", ["http", "s3"])
def test_batches_through_a_failing_server_are_the_batches_on_disk(
    root: Path, local: Corpus, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(error=0.15, short=0.15, wrong=0.15, hang=0.05, hang_seconds=0.2)
    with failing_server(root, faults) as url:
        for name, value in (("ENDPOINT_URL", url), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "y")):
            monkeypatch.setenv(f"AWS_{name}", value)
        out = "s3://bucket/out" if protocol == "s3" else f"{url}/bucket/out"
        corpus = open_corpus([DataTable(out=out)])
        reader = CachedBlocks(corpus, order_of(corpus), WHOLE, options_of(tmp_path))
        assert_same_batches(corpus, local, reader, 50)
        reader.close()
    assert reader.figures.damaged_blocks == faults.counts["wrong"] + faults.counts["wrong .blocks"] > 0
    assert faults.counts["error"] > 0
    assert CacheFolder(str(tmp_path), 0).used_bytes() <= 3 * BLOCK_BYTES


def test_each_block_of_an_epoch_is_fetched_once(root: Path, local: Corpus, tmp_path: Path) -> None:
    reader = CachedBlocks(local, order_of(local), WHOLE, options_of(tmp_path))
    assert_same_batches(local, local, reader, 48)  # 768 of the 778 sequences of an epoch
    reader.close()
    total = sum(shard.num_tokens for shard in local.sources["a"]) * 4
    assert total - BLOCK_BYTES <= reader.figures.bytes_fetched <= total + 2 * BLOCK_BYTES
    assert reader.figures.evictions > 0


def test_a_cache_smaller_than_windows_and_blocks_in_flight_is_refused_with_the_number(
    local: Corpus, tmp_path: Path
) -> None:
    order = order_of(local, window_blocks=2)
    assert needed_bytes(local, order, 3) == 5 * BLOCK_BYTES
    with pytest.raises(ValueError, match=f"expected at least {5 * BLOCK_BYTES}"):
        CachedBlocks(local, order, WHOLE, options_of(tmp_path, num_blocks=4, prefetch_blocks=3))


def test_a_shard_that_always_comes_damaged_fails_clearly(root: Path) -> None:
    with failing_server(root, Faults(wrong=1.0, digests_too=False)) as url:
        shard = open_corpus([DataTable(out=f"{url}/bucket/out")]).sources["a"][0]
        figures = ReadFigures()
        with pytest.raises(DamagedBlockError, match=r"block 3 of .*00000\.bin came damaged, 10 attempts"):
            fetch_block(shard, 3, figures)
        assert figures.damaged_blocks == 10


def test_a_server_that_only_fails_is_given_up_with_its_last_error(root: Path) -> None:
    with failing_server(root, Faults(error=1.0)) as url:
        shard = open_corpus([DataTable(out=f"{url}/bucket/out")]).sources["a"][0]
        with pytest.raises(StorageError, match=r"could not be read in 10 attempts; the last:.*503"):
            fetch_block(shard, 3, ReadFigures())


def test_a_shard_that_is_gone_is_told_at_once(root: Path) -> None:
    with failing_server(root, Faults()) as url:
        shard = open_corpus([DataTable(out=f"{url}/bucket/out")]).sources["a"][0]
        figures = ReadFigures()
        with pytest.raises(FileNotFoundError):
            fetch_block(dataclasses.replace(shard, file="shards/a/77777.bin"), 0, figures)
        assert figures.failed_reads == 0


def test_a_block_that_another_process_wrote_wrongly_is_fetched_again(local: Corpus, tmp_path: Path) -> None:
    shard = local.sources["a"][0]
    (tmp_path / (key_of(shard, 3) + ".block")).write_bytes(b"\0" * 280_000)
    reader = CachedBlocks(local, order_of(local), WHOLE, options_of(tmp_path))
    block = reader.block(shard, 3)
    assert np.array_equal(block, LocalBlocks().block(shard, 3))
    assert reader.figures.damaged_blocks == 1
    reader.close()


def test_a_block_of_another_size_is_fetched_again(local: Corpus, tmp_path: Path) -> None:
    shard = local.sources["a"][0]
    file = tmp_path / (key_of(shard, 3) + ".block")
    file.write_bytes(b"cut off")
    reader = CachedBlocks(local, order_of(local), WHOLE, options_of(tmp_path))
    assert np.array_equal(reader.block(shard, 3), LocalBlocks().block(shard, 3))
    assert file.stat().st_size == 280_000
    assert reader.figures.streamed_blocks == 0
    reader.close()


def test_a_block_that_the_disk_cannot_read_is_fetched_again(
    local: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = local.sources["a"][0]
    right = LocalBlocks().block(shard, 3)
    first = CachedBlocks(local, order_of(local), WHOLE, options_of(tmp_path))
    first.block(shard, 3)
    first.close()
    honest, bad_sectors = os.pread, [17]

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        if bad_sectors:
            bad_sectors.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return honest(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    reader = CachedBlocks(local, order_of(local), WHOLE, options_of(tmp_path))
    assert np.array_equal(reader.block(shard, 3), right)
    assert (reader.figures.disk_errors, reader.figures.streamed_blocks) == (1, 0)
    reader.close()


def test_a_block_that_another_process_wrote_anew_is_checked_again(local: Corpus, tmp_path: Path) -> None:
    """Two runs share a folder: what one has fetched the other may drop, and write again on a disk that
    fails."""
    shard = local.sources["a"][0]
    key, right = key_of(shard, 3), LocalBlocks().block(shard, 3)
    reader, other = (
        CachedBlocks(local, order_of(local), WHOLE, options_of(tmp_path)),
        CacheFolder(str(tmp_path), 0),
    )
    assert np.array_equal(reader.block(shard, 3), right)
    other.remove(key)
    claim = other.claim(key, lambda: False)
    assert claim is not None
    reader.at(0)
    claim.publish(b"\0" * 280_000)
    assert np.array_equal(reader.block(shard, 3), right)
    assert reader.figures.damaged_blocks == 1
    reader.close()


def test_blocks_that_the_index_does_not_name_are_dropped_at_the_start(local: Corpus, tmp_path: Path) -> None:
    kept, purged = key_of(local.sources["a"][1], 3), f"{'ab' * 16}-00000-280000"
    for key in (kept, purged):
        (tmp_path / f"{key}.block").write_bytes(b"\0" * 280_000)
    (tmp_path / f"{purged}.part").write_bytes(b"left by a dead process")
    CachedBlocks(local, order_of(local), WHOLE, options_of(tmp_path)).close()
    names = os.listdir(tmp_path)
    assert f"{kept}.block" in names
    assert not [name for name in names if name.startswith(purged[:32])]


@pytest.mark.parametrize("trouble", ["no folder", "full disk"])
def test_a_disk_that_does_not_serve_costs_speed_only(root: Path, tmp_path: Path, trouble: str) -> None:
    run_all([partial(read_on_a_bad_disk, root, tmp_path / "cache", trouble)])


def read_on_a_bad_disk(root: Path, folder: Path, trouble: str) -> None:
    if trouble == "no folder":
        folder.write_bytes(b"a file where the folder should be")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    local = corpus_on_disk(root)
    reader = CachedBlocks(local, order_of(local), WHOLE, options_of(folder))
    assert_same_batches(local, local, reader, 6)
    assert reader.figures.disk_errors > 0
    assert reader.figures.streamed_blocks > 0
    reader.close()


def run_all(children: list[Callable[[], None]]) -> None:
    """Run each in a forked process; a failed assertion there fails here."""
    context = fork_server()
    processes = [
        context.Process(target=with_quick_retries, args=(child, dict(os.environ))) for child in children
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=600)
    assert [process.exitcode for process in processes] == [0] * len(children)


def with_quick_retries(child: Callable[[], None], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    with pytest.MonkeyPatch.context() as patched:
        retry_quickly(patched)
        child()


HALVES = (Slice(rank=0, num_ranks=2), Slice(rank=1, num_ranks=2))


@pytest.mark.parametrize(
    "parts", [HALVES, (WHOLE, WHOLE)], ids=["data parallel ranks", "tensor parallel peers"]
)
def test_processes_of_a_node_fetch_each_block_once_between_them(
    root: Path, tmp_path: Path, parts: tuple[Slice, Slice]
) -> None:
    faults = Faults()
    with failing_server(root, faults) as url:
        run_all([partial(read_over, url, root, tmp_path, parts, part) for part in parts])
    assert faults.counts["requests"] == 8


def read_over(url: str, root: Path, folder: Path, parts: tuple[Slice, ...], part: Slice) -> None:
    """As the rank of `part` does, of two on a node."""
    remote = open_corpus([DataTable(out=f"{url}/bucket/out")])
    node = tuple(dict.fromkeys(parts))
    options = dataclasses.replace(options_of(folder, 9, 4, node), num_processes=2)
    reader = CachedBlocks(remote, order_of(remote), part, options)
    assert_same_batches(remote, corpus_on_disk(root), reader, 49, part)
    reader.close()


def test_what_another_process_fetches_is_not_waited_for_where_it_is_not_needed_yet(tmp_path: Path) -> None:
    folder = CacheFolder(str(tmp_path), 1000)
    folder.prepare(())
    claim = folder.claim(KEYS[0], lambda: False)
    assert claim is not None
    assert folder.claim(KEYS[0], lambda: False, wait=False) is None
    claim.drop()
    assert folder.claim(KEYS[0], lambda: False, wait=False) is not None


def test_a_fetcher_that_is_killed_leaves_its_block_to_others(tmp_path: Path) -> None:
    folder = CacheFolder(str(tmp_path), 1000)
    folder.prepare(())
    context = fork_server()
    holds = context.Event()
    process = context.Process(target=hold, args=(folder, holds))
    process.start()
    assert holds.wait(600)
    assert folder.used_bytes() == 100
    asked = iter([False, False, True])
    assert folder.claim(KEYS[0], lambda: next(asked)) is None
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    claim = folder.claim(KEYS[0], lambda: False)
    assert claim is not None
    claim.publish(b"\0" * 100)
    assert folder.keys() == {KEYS[0]}


def hold(folder: CacheFolder, holds: Event) -> None:
    """Claim a block, and never fetch it."""
    claim = folder.claim(KEYS[0], lambda: False)
    assert claim is not None
    assert folder.make_room(KEYS[0], claim, lambda key: NEVER, 0) == 0
    holds.set()
    time.sleep(3600)


def test_of_many_claimants_one_fetches_and_the_rest_find_it(tmp_path: Path) -> None:
    folder = CacheFolder(str(tmp_path), 10_000)
    folder.prepare(())
    fetched = []

    def claimant() -> None:
        claim = folder.claim(KEYS[0], lambda: False)
        if claim is None:
            assert folder.has(KEYS[0])
            return
        fetched.append(1)
        time.sleep(0.02)
        claim.publish(b"\0" * 100)

    threads = [threading.Thread(target=claimant) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == [1]
    assert os.listdir(tmp_path) == [f"{KEYS[0]}.block"]


def fill(folder: CacheFolder, keys: list[str]) -> None:
    for key in keys:
        claim = folder.claim(key, lambda: False)
        assert claim is not None
        claim.publish(b"\0" * 100)


def test_room_is_made_by_dropping_what_is_needed_furthest_ahead(tmp_path: Path) -> None:
    folder = CacheFolder(str(tmp_path), 500)
    folder.prepare(())
    fill(folder, KEYS[:5])
    next_use = dict(zip(KEYS[:5], (3, 9, NEVER, 1, 9), strict=True))
    claim = folder.claim(KEYS[5], lambda: False)
    assert claim is not None
    assert folder.make_room(KEYS[5], claim, next_use.__getitem__, 4) == 1
    claim.publish(b"\0" * 100)
    assert folder.keys() == {KEYS[0], KEYS[1], KEYS[3], KEYS[4], KEYS[5]}
    assert folder.used_bytes() == 500


def test_nothing_that_is_needed_sooner_makes_room(tmp_path: Path) -> None:
    folder = CacheFolder(str(tmp_path), 500)
    folder.prepare(())
    fill(folder, KEYS[:5])
    claim = folder.claim(KEYS[5], lambda: False)
    assert claim is not None
    assert folder.make_room(KEYS[5], claim, lambda key: 4, 4) is None
    assert folder.keys() == set(KEYS[:5])
    claim.drop()
    assert folder.used_bytes() == 500


def brute_force_uses(
    order: Order, parts: tuple[Slice, ...], steps: range
) -> Iterator[tuple[int, set[tuple[int, ...]]]]:
    for step in steps:
        blocks = set()
        for part in parts:
            _, places = Dataset(
                Corpus(outputs=(), sources={}, tokenizer=None), order, LocalBlocks(), part
            ).places(step)  # type: ignore[arg-type]
            rows = zip(places.source, places.shard, places.start // BLOCK_TOKENS, strict=True)
            blocks |= {(int(a), int(b), int(c)) for a, b, c in rows}
        yield step, blocks


def test_the_schedule_knows_the_next_use_of_every_block_in_sight(local: Corpus) -> None:
    order = order_of(local, window_blocks=2)
    parts = tuple(Slice(rank=rank, num_ranks=3) for rank in range(2))
    schedule = Schedule(order, parts[0], parts, num_blocks=1000)
    uses = dict(brute_force_uses(order, parts, range(80)))
    own = dict(brute_force_uses(order, parts[:1], range(80)))
    began = 0
    for step in (0, 1, 2, 3, 10, 11, 12, 50, 51, 4):
        began = step if step in (0, 50, 4) else began
        schedule.at(step)
        kept = range(max(began, step - 3), step + 4)
        for block in set().union(*uses.values()):
            expected = next((at for at in kept if block in uses[at]), None)
            if expected is not None:
                assert schedule.next_use(block) == expected
        assert set(schedule.upcoming()) >= set().union(*(own[at] for at in range(step, step + 4)))
    assert schedule.next_use((0, 9, 9)) == NEVER


@pytest.mark.slow
def test_two_ranks_and_a_throttled_failing_s3_with_a_cache_of_a_tenth_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, folder = tmp_path / "served", tmp_path / "cache"
    write_output(
        served / "bucket" / "out", {"a": [made_up_tokens(11 * BLOCK_TOKENS, seed) for seed in (1, 2)]}
    )
    parts = HALVES
    bound = 2 * BLOCK_BYTES  # of 22 blocks, 184 MB
    barrier = fork_server().Barrier(2)
    faults = Faults(error=0.05, short=0.05, wrong=0.05, hang=0.02, hang_seconds=0.5, bytes_per_second=60e6)
    with failing_server(served, faults) as url:
        for name, value in (("ENDPOINT_URL", url), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "y")):
            monkeypatch.setenv(f"AWS_{name}", value)

        with peak_bytes(folder) as peak:
            run_all([partial(read_in_step, served, folder, barrier, parts, part) for part in parts])
    assert 0 < peak.bytes <= bound
    assert min(faults.counts[kind] for kind in ("error", "short", "wrong")) > 0


def read_in_step(served: Path, folder: Path, barrier: Barrier, parts: tuple[Slice, ...], part: Slice) -> None:
    remote = open_corpus([DataTable(out="s3://bucket/out")])
    here = corpus_on_disk(served)
    reader = CachedBlocks(remote, order_of(remote), part, options_of(folder, 2, 1, parts))
    began = time.perf_counter()
    assert_same_batches(remote, here, reader, 176, part, in_step=barrier.wait)
    share = reader.figures.wait_seconds / (time.perf_counter() - began)
    read = 176 * 16 * 16_384 * 4 / 2
    amplification = reader.figures.bytes_fetched / read
    print(f"rank {part.rank}: wait share {share:.2f}, amplification {amplification:.2f}, {reader.figures}")
    reader.close()


def test_a_cache_on_a_file_system_without_locks_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DiskError, match="No locks available"):
        CacheFolder(str(tmp_path), 1000).claim(KEYS[0], lambda: False)
