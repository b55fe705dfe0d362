"""One block from wherever its shard lies, by a range read: checked, and tried again with growing pauses."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final, cast

import fsspec.asyn

from lineage.index.blocks import BLOCK_BYTES, TOKEN_BYTES, block_digest
from lineage.storage.folder import Folder, StorageError, filesystem
from lineage.storage.transient import TRANSIENT
from trainer.data.blocks import DamagedBlockError, block_tokens, digest_of
from trainer.data.corpus import ShardFile
from trainer.data.figures import ReadFigures

ATTEMPTS: Final = 10
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0  # seconds; the ten attempts wait for about 20 together
_READ_SECONDS: Final = 30.0  # for 8 MiB: slower than 280 kB/s is as good as hung


def fetch_block(
    shard: ShardFile, number: int, figures: ReadFigures, give_up: Callable[[], bool] = lambda: False
) -> bytes:
    """The bytes of block `number` of `shard`, as its digest says. FileNotFoundError: the shard is gone.

    StorageError or DamagedBlockError when the attempts are used up; the message gives the last reason."""
    size = block_tokens(shard, number) * TOKEN_BYTES
    expected = expected_digest(shard, number, figures, give_up)

    def read() -> bytes:
        data = _read_range(Folder(shard.folder), shard.file, number * BLOCK_BYTES, size)
        figures.count("bytes_fetched", len(data))
        if len(data) != size:
            raise StorageError(f"{len(data)} bytes came instead of {size}")
        if block_digest(data) != expected:
            raise DamagedBlockError("its digest is not what the .blocks file says")
        return data

    return _persist(read, f"block {number} of {shard.folder}/{shard.file}", figures, give_up)


def expected_digest(
    shard: ShardFile, number: int, figures: ReadFigures, give_up: Callable[[], bool] = lambda: False
) -> bytes:
    """The digest that block `number` must have; errors as those of `fetch_block`."""
    where = f"{shard.folder}/{shard.blocks_file}"
    return _persist(lambda: digest_of(shard, number), where, figures, give_up)


def _persist(
    read: Callable[[], bytes], what: str, figures: ReadFigures, give_up: Callable[[], bool]
) -> bytes:
    """What `read` returns, in as many attempts as it takes, up to ATTEMPTS."""
    error: BaseException = StorageError("the reader was closed")
    for attempt in range(ATTEMPTS):
        if give_up():
            break
        # Of random length: ranks whose requests failed together must not come back together.
        if attempt:
            time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))
        try:
            return read()
        except FileNotFoundError:
            raise
        except DamagedBlockError as damage:
            figures.count("damaged_blocks")
            error = damage
        except TRANSIENT as failure:
            figures.count("failed_reads")
            error = failure
    if isinstance(error, DamagedBlockError):
        raise DamagedBlockError(
            f"{what} came damaged, {ATTEMPTS} attempts: {error}. Run `sluice verify` and restore it"
        )
    raise StorageError(
        f"{what} could not be read in {ATTEMPTS} attempts; the last: {type(error).__name__}: {error}"
    )


def _read_range(folder: Folder, name: str, start: int, length: int) -> bytes:
    if not folder.is_remote:
        return folder.read_range(name, start, length)
    files = filesystem(folder.url)

    async def read() -> bytes:
        reading = files._cat_file(folder.at(name), start=start, end=start + length)
        # A connection that stays open and silent raises nothing by itself.
        return cast(bytes, await asyncio.wait_for(reading, _READ_SECONDS))

    loop: Any = files.loop
    return cast(bytes, fsspec.asyn.sync(loop, read))
