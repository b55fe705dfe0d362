"""How fast the loader makes batches, beside a bound and MosaicML Streaming, on the same tokens in one run.

One process, no loader workers; batches are int64 inputs and labels. The bound copies random rows of a plain
memmap to int64 inputs and labels and does nothing else. Rounds alternate between the contenders; medians are
told.

    python benchmarks/loader.py --scratch /tmp/loader-benchmark [--streaming-python VENV/bin/python]

Streaming needs an environment of its own (it wants numpy < 2.2):
`python -m venv VENV && VENV/bin/pip install mosaicml-streaming`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lineage.ids import tokens_hash
from lineage.index.blocks import BLOCK_BYTES, BLOCK_TOKENS
from tests.support.outputs.synthetic import EOT, TOKENIZER, made_up_tokens, write_output
from tests.support.stores.failing_server import Faults, failing_server
from trainer.data.blocks import LocalBlocks
from trainer.data.cache.reader import CachedBlocks, CacheOptions
from trainer.data.corpus import Corpus, ShardFile, open_corpus
from trainer.data.dataset import Dataset, Slice, document_layout, rows_of_slice
from trainer.options import DataTable
from trainer.order import Order, OrderOptions, plan_order

WHOLE = Slice()
VIRTUAL_TOKENS = 15 * 10**12
SHARD_TOKENS = 1 << 28

STREAMING = """
import json, sys, time
import numpy as np
from streaming import MDSWriter, StreamingDataset
what, remote, local, seq_len, batch, seconds = *sys.argv[1:4], *map(int, sys.argv[4:7])
if what == "write":
    with MDSWriter(out=local, columns={"tokens": f"ndarray:uint32:{seq_len}"}, size_limit=8 << 20) as writer:
        for file in sys.argv[7:]:
            tokens = np.fromfile(file, "<u4")
            for start in range(0, len(tokens) - seq_len + 1, seq_len):
                writer.write({"tokens": tokens[start : start + seq_len]})
    sys.exit()
data = StreamingDataset(remote=remote or None, local=local, shuffle=True, batch_size=batch, batching_method="random")

def by_loader():  # as its documentation says
    from torch.utils.data import DataLoader
    for rows in DataLoader(data, batch_size=batch, num_workers=0, drop_last=True):
        inputs = rows["tokens"].numpy().astype(np.int64)
        labels = np.full_like(inputs, -100)
        labels[:, :-1] = inputs[:, 1:]
        yield inputs, labels

def by_hand():  # what is left of it without torch's collation
    row, inputs, labels = 0, np.empty((batch, seq_len), np.int64), np.empty((batch, seq_len), np.int64)
    for sample in data:
        inputs[row] = sample["tokens"]
        labels[row, :-1], labels[row, -1] = inputs[row, 1:], -100
        row += 1
        if row == batch:
            yield inputs, labels
            row, inputs, labels = 0, np.empty((batch, seq_len), np.int64), np.empty((batch, seq_len), np.int64)

done, until = 0, None
while until is None or time.perf_counter() < until:
    for _ in by_loader() if what == "loader" else by_hand():
        if until is None:  # the first batch is warm-up: its partition of the epoch is not the loader's speed
            began, used = time.perf_counter(), time.process_time()
            until = began + seconds
            continue
        done += batch * seq_len
        if time.perf_counter() > until:
            break
print(json.dumps({"wall": done / (time.perf_counter() - began), "processor": done / (time.process_time() - used)}))
"""


class Speed(NamedTuple):
    """Tokens for a second of the clock, and for a second of processor time: the latter holds on a busy
    machine."""

    wall: float
    processor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every contender is given."""

    scratch: Path
    seq_len: int
    batch: int
    seconds: int
    files: tuple[Path, ...]
    streaming: str | None

    @property
    def out(self) -> Path:
        """The folder of the shards."""
        return self.scratch / "served" / "bucket" / "out"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/loader-benchmark"))
    parser.add_argument("--blocks", type=int, default=48)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument(
        "--batch", type=int, default=8, help="rows; 8 is the largest default micro-batch of a rank"
    )
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streaming-python")
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    out = options.scratch / "served" / "bucket" / "out"
    if not (out / "index.json").exists():
        arrays = [made_up_tokens(options.blocks // 3 * BLOCK_TOKENS, seed, 700) for seed in range(3)]
        write_output(out, {"web": arrays})
    files = tuple(sorted(out.glob("shards/web/*.bin")))
    setting = Setting(
        scratch=options.scratch,
        seq_len=options.seq_len,
        batch=options.batch,
        seconds=options.seconds,
        files=files,
        streaming=options.streaming_python,
    )
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "warm": lambda: warm(setting, options.rounds),
        "apart": lambda: apart(setting),
        "cold": lambda: cold(setting),
        "from S3": lambda: from_s3(setting),
        "resume at 15T": lambda: resume(setting),
        "order": order_speed,
        "read amplification": amplification,
    }
    print(
        json.dumps(
            {name: part() for name, part in parts.items() if name in (options.only or parts)}, indent=1
        )
    )


def dataset_of(setting: Setting) -> Dataset:
    """The loader over the shards on disk."""
    corpus = open_corpus([DataTable(out=str(setting.out))])
    options = OrderOptions(seed=1, seq_len=setting.seq_len, global_batch=setting.batch)
    return Dataset(corpus, Order(plan_order(corpus.lengths, options)), LocalBlocks(), WHOLE)


def ours(setting: Setting) -> Callable[[], Speed]:
    """Tokens a second of `Dataset.batch`: inputs, labels, and which labels count."""
    dataset = dataset_of(setting)
    steps = iter(range(1 << 40))
    return lambda: speed(lambda: dataset.batch(next(steps)), setting)


def bound(setting: Setting) -> Callable[[], Speed]:
    """Tokens a second of rows of a plain memmap, copied to int64 inputs and labels."""
    maps = [np.memmap(file, "<u4", mode="r") for file in setting.files]
    rng = np.random.default_rng(0)

    def copy() -> None:
        inputs = np.empty((setting.batch, setting.seq_len), np.int64)
        labels = np.empty_like(inputs)
        shards = rng.integers(0, len(maps), setting.batch).tolist()
        starts = rng.integers(0, len(maps[0]) - setting.seq_len - 1, setting.batch).tolist()
        for row in range(setting.batch):
            tokens, start = maps[shards[row]], starts[row]
            inputs[row] = tokens[start : start + setting.seq_len]
            labels[row] = tokens[start + 1 : start + setting.seq_len + 1]

    return lambda: speed(copy, setting)


def streaming(setting: Setting, how: str) -> Callable[[], Speed]:
    """The speed of MosaicML Streaming, `how` its samples become the same int64 arrays: "loader" or "hand"."""
    local = setting.scratch / "mds"
    if not (local / "index.json").exists():
        run_streaming(setting, "write", "", local)
    return lambda: run_streaming(setting, how, "", local)


def run_streaming(setting: Setting, what: str, remote: str, local: Path) -> Speed:
    """One process of Streaming; no speed after writing."""
    assert setting.streaming is not None
    numbers = (setting.seq_len, setting.batch, setting.seconds)
    command = [setting.streaming, "-c", STREAMING, what, remote, str(local), *map(str, numbers)]
    done = subprocess.run([*command, *map(str, setting.files)], check=True, stdout=subprocess.PIPE, text=True)
    if what == "write":
        return Speed(0.0, 0.0)
    return Speed(**json.loads(done.stdout.splitlines()[-1]))


def speed(make: Callable[[], object], setting: Setting) -> Speed:
    """The speed of batches made for `seconds`."""
    began, used, made = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < began + setting.seconds:
        make()
        made += 1
    tokens = made * setting.batch * setting.seq_len
    return Speed(tokens / (time.perf_counter() - began), tokens / (time.process_time() - used))


def warm(setting: Setting, rounds: int) -> dict[str, float]:
    """Everything in the page cache and every block checked once: medians, and ratios of round by round."""
    contenders = {"ours": ours(setting), "bound": bound(setting)}
    if setting.streaming:
        contenders |= {f"streaming by {how}": streaming(setting, how) for how in ("loader", "hand")}
    for contender in contenders.values():
        contender()
    speeds = [{name: contender() for name, contender in contenders.items()} for _ in range(rounds)]
    told = {}
    for clock in Speed._fields:
        for name in contenders:
            told[f"{name}: tokens a second ({clock})"] = statistics.median(
                getattr(r[name], clock) for r in speeds
            )
        for name in contenders.keys() - {"ours"}:
            ratios = [getattr(r["ours"], clock) / getattr(r[name], clock) for r in speeds]
            told[f"ours over {name} ({clock})"] = statistics.median(ratios)
    return told


def apart(setting: Setting) -> dict[str, float]:
    """Tokens for a second of processor time of what comes on top of a batch."""
    dataset = dataset_of(setting)
    batch = dataset.batch(0)
    shard = dataset.corpus.sources["web"][0]
    rows = batch.inputs_BT.astype(np.uint32)

    def check() -> None:
        LocalBlocks().block(shard, 0)

    check_setting = Setting(
        scratch=setting.scratch, seq_len=BLOCK_TOKENS, batch=1, seconds=1, files=setting.files, streaming=None
    )
    return {
        "positions_and_documents": speed(lambda: document_layout(batch.inputs_BT, EOT), setting).processor,
        "hashes_of_the_record": speed(lambda: [tokens_hash(row) for row in rows], setting).processor,
        "check_of_a_block": speed(check, check_setting).processor,
    }


def cold(setting: Setting) -> dict[str, float]:
    """Tokens a second of one pass after the page cache was told to forget the files; blocks are checked."""
    told = {}
    dataset = dataset_of(setting)
    forget(setting.files)
    num_steps = int(dataset.order.num_train[0]) // setting.batch
    began = time.perf_counter()
    for step in range(num_steps):
        dataset.batch(step)
    told["ours"] = num_steps * setting.batch * setting.seq_len / (time.perf_counter() - began)
    if setting.streaming:
        forget(tuple((setting.scratch / "mds").glob("*.mds")))
        told["streaming"] = run_streaming(setting, "loader", "", setting.scratch / "mds").wall
    return told


def forget(files: tuple[Path, ...]) -> None:
    """Drop the files from the page cache, as far as the kernel follows the advice."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def from_s3(setting: Setting) -> dict[str, float]:
    """Tokens a second of one pass through an empty cache from an S3-speaking server in this process."""
    faults, told = Faults(), {}
    with failing_server(setting.scratch / "served", faults) as url:
        os.environ |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        corpus = open_corpus([DataTable(out="s3://bucket/out")])
        options = OrderOptions(seed=1, seq_len=setting.seq_len, global_batch=setting.batch, window_blocks=8)
        order = Order(plan_order(corpus.lengths, options))
        folder = setting.scratch / f"cache-{os.getpid()}"
        num_steps = int(order.num_train[0]) // setting.batch
        cache = CacheOptions(
            folder=str(folder), max_bytes=32 * BLOCK_BYTES, prefetch_blocks=8, num_steps=num_steps
        )
        reader = CachedBlocks(corpus, order, WHOLE, cache)
        dataset = Dataset(corpus, order, reader, WHOLE)
        began = time.perf_counter()
        for step in range(num_steps):
            dataset.batch(step)
        seconds = time.perf_counter() - began
        reader.close()
        num_tokens = num_steps * setting.batch * setting.seq_len
        told = {
            "ours": num_tokens / seconds,
            "read_amplification": reader.figures.bytes_fetched / num_tokens / 4,
        }
        told |= {"wait_share": reader.figures.wait_seconds / seconds}
    return told


def resume(setting: Setting) -> dict[str, float]:
    """Seconds from the lengths of 15 trillion tokens' shards and a step to the first batch; the shards are
    virtual: each stands for the first blocks of a real one."""
    real = open_corpus([DataTable(out=str(setting.out))]).sources["web"][0]
    num_shards = VIRTUAL_TOKENS // SHARD_TOKENS + 1

    class FirstBlocks(LocalBlocks):
        def block(self, shard: ShardFile, number: int) -> np.ndarray:
            return super().block(real, number % (real.num_tokens // BLOCK_TOKENS))

    shard = ShardFile(
        folder=real.folder,
        file=real.file,
        hash=real.hash,
        num_tokens=SHARD_TOKENS - 12_345,
        blocks_file=real.blocks_file,
        blocks_hash=real.blocks_hash,
    )
    corpus = Corpus(outputs=(), sources={"web": (shard,) * num_shards}, tokenizer=TOKENIZER)
    began = time.perf_counter()
    options = OrderOptions(seed=1, seq_len=setting.seq_len, global_batch=1024)
    order = Order(plan_order(corpus.lengths, options))
    planned = time.perf_counter()
    step = int(order.num_train[0]) // 1024 * 2 // 3
    Dataset(corpus, order, FirstBlocks(), WHOLE).batch(step)
    ended = time.perf_counter()
    return {"step": step, "seconds": ended - began, "of_these_for_the_plan": planned - began}


def order_speed() -> dict[str, float]:
    """Microseconds of processor time that a sequence costs, a thousand at once, of 15 trillion tokens in 12
    sources."""
    lengths = {
        f"source-{n:02d}": [SHARD_TOKENS - 12_345] * (VIRTUAL_TOKENS // SHARD_TOKENS // 12) for n in range(12)
    }
    order = Order(plan_order(lengths, OrderOptions(seed=1, seq_len=2048, global_batch=1024)))
    total = int(order.num_train.sum())
    numbers = {
        "consecutive": np.arange(total // 2, total // 2 + 1000, dtype=np.int64),
        "anywhere in an epoch": np.random.default_rng(0).integers(0, total * 9 // 10, 1000),
    }
    told = {}
    for name, sequence in numbers.items():
        order.locate(sequence)
        rounds = []
        for _ in range(20):
            used = time.process_time()
            for _ in range(20):
                order.locate(sequence)
            rounds.append((time.process_time() - used) / 20 / 1000 * 1e6)
        told[name] = statistics.median(rounds)
    return told


def amplification() -> dict[str, float]:
    """Blocks that nodes read, over blocks there are, while a window of 64 blocks is read: rows dealt by
    place, and rows dealt as they come. 2 to 1,024 nodes of 8 ranks with a row each, at least 1,024 rows a
    batch."""
    told = {}
    for num_nodes in (2, 8, 32, 128, 1024):
        batch = max(1024, 8 * num_nodes)
        lengths = {"web": [256 * BLOCK_TOKENS]}
        order = Order(plan_order(lengths, OrderOptions(seed=1, seq_len=2048, global_batch=batch)))
        by_place: set[tuple[int, int]] = set()
        as_they_come: set[tuple[int, int]] = set()
        num_steps = 64 * 1024 // batch
        for step in range(num_steps):
            numbers = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
            nodes = np.arange(batch) * num_nodes // batch
            dealt = rows_of_slice(numbers, order.locate(numbers), WHOLE)[1].start // BLOCK_TOKENS
            by_place |= set(zip(nodes.tolist(), dealt.tolist(), strict=True))
            plain = order.locate(numbers).start // BLOCK_TOKENS
            as_they_come |= set(zip(nodes.tolist(), plain.tolist(), strict=True))
        told[f"{num_nodes} nodes, by place"] = len(by_place) / 64
        told[f"{num_nodes} nodes, as they come"] = len(as_they_come) / 64
    return told


if __name__ == "__main__":
    main()
