"""One block from wherever its shard lies, by a range read: checked, and tried again with growing pauses."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final, cast

import aiohttp
import fsspec.asyn
from botocore.exceptions import BotoCoreError, ClientError

from lineage.blocks import BLOCK_BYTES, TOKEN_BYTES, block_digest
from lineage.storage import Folder, StorageError, filesystem
from trainer.blocks import DamagedBlockError, block_tokens, digest_of
from trainer.corpus import ShardFile
from trainer.figures import ReadFigures

ATTEMPTS: Final = 10
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0  # seconds; the ten attempts wait for about 20 together
_READ_SECONDS: Final = 30.0  # for 8 MiB: slower than 280 kB/s is as good as hung
_TRANSIENT: Final = (OSError, aiohttp.ClientError, BotoCoreError, ClientError)


def fetch_block(
    shard: ShardFile, number: int, figures: ReadFigures, give_up: Callable[[], bool] = lambda: False
) -> bytes:
    """The bytes of block `number` of `shard`, as its digest says. FileNotFoundError: the shard is gone.

    StorageError or DamagedBlockError when the attempts are used up; the message tells the last reason."""
    size = block_tokens(shard, number) * TOKEN_BYTES
    where = f"block {number} of {shard.folder}/{shard.file}"
    damage, reason = None, "the reader was closed"
    for attempt in range(ATTEMPTS):
        if give_up():
            break
        if attempt:
            time.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))
        try:
            data = _read_range(Folder(shard.folder), shard.file, number * BLOCK_BYTES, size)
        except FileNotFoundError:
            raise
        except _TRANSIENT as error:
            figures.count("failed_reads")
            reason = f"{type(error).__name__}: {error}"
            continue
        figures.count("bytes_fetched", len(data))
        if len(data) != size:
            figures.count("failed_reads")
            reason = f"{len(data)} bytes came instead of {size}"
        elif block_digest(data) != digest_of(shard, number):
            figures.count("damaged_blocks")
            reason = damage = "its digest is not what the .blocks file says"
        else:
            return data
    if damage is not None and reason == damage:
        raise DamagedBlockError(f"{where} came damaged {ATTEMPTS} times: {reason}. Run `sluice verify` and restore it")
    raise StorageError(f"{where} could not be read in {ATTEMPTS} attempts; the last: {reason}")


def _read_range(folder: Folder, name: str, start: int, length: int) -> bytes:
    if not folder.is_remote:
        return folder.read_range(name, start, length)
    files = filesystem(folder.url)

    async def read() -> bytes:
        reading = files._cat_file(folder.at(name), start=start, end=start + length)
        return cast(bytes, await asyncio.wait_for(reading, _READ_SECONDS))

    loop: Any = files.loop
    return cast(bytes, fsspec.asyn.sync(loop, read))
