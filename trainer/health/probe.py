"""A short known matrix product and a known collective on each device: time and bits, compared over the ranks.

All numbers are whole, and no sum of them is above 256: bfloat16 holds these exactly, so the product has the
same bits on every device and in every order of adding, and a wrong one is wrong, not rounded."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.telemetry.symptoms import Symptom

_ROWS: Final = {"cuda": 2048, "cpu": 256}
_INNER: Final = 256
_REPEATS: Final = 5
_COLLECTIVE: Final = 1 << 16
_SLOW: Final = 1.5
"""A device is told of that takes this much longer than the median: half of a step's work more is what
counts."""
_LEAST_DISK_SHARE: Final = 0.02
_LEAST_MEMORY_SHARE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a rank found of itself. `wrong_product`: elements that are not what they must be; `product_seconds`: the
    median of some repeats; shares of the disk of the output and of host memory that are free (None: not
    known)."""

    rank: int
    host: str
    wrong_products: int
    wrong_sums: int
    product_seconds: float
    free_disk: float | None
    free_memory: float | None


def probe(device: torch.device, host: str, folder: str | None) -> Probe:
    """Probe this rank's device; `folder`: on the disk that is looked at. Collective over the default
    group."""
    left, right, expected = known_product(device)
    seconds, wrong = [], 0
    for _ in range(_REPEATS):
        began = time.perf_counter()
        found = left @ right
        _settle(device)
        seconds.append(time.perf_counter() - began)
        wrong = max(wrong, wrong_elements(found, expected))
    wrong_sums = 0
    for _ in range(_REPEATS):
        numbers = torch.arange(_COLLECTIVE, dtype=torch.float32, device=device) % 64 + dist.get_rank()
        dist.all_reduce(numbers)
        _settle(device)
        wrong_sums = max(wrong_sums, wrong_elements(numbers, _known_sum(device)))
    return Probe(
        rank=dist.get_rank(),
        host=host,
        wrong_products=wrong,
        wrong_sums=wrong_sums,
        product_seconds=statistics.median(seconds),
        free_disk=_free_disk(folder),
        free_memory=_free_memory(),
    )


def known_product(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(left, right, left @ right) on a device, the last from the processor's float64."""
    generator, rows = torch.Generator().manual_seed(0), _ROWS[device.type]
    left = torch.randint(-1, 2, (rows, _INNER), generator=generator)
    right = torch.randint(-1, 2, (_INNER, rows), generator=generator)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    expected = left.double() @ right.double()
    return left.to(device, dtype), right.to(device, dtype), expected.to(device, dtype)


def wrong_elements(found: Tensor, expected: Tensor) -> int:
    """How many elements differ, NaN among them."""
    return int((found != expected).sum())


def _known_sum(device: torch.device) -> Tensor:
    world = dist.get_world_size()
    numbers = torch.arange(_COLLECTIVE, dtype=torch.float64, device=device) % 64
    return (numbers * world + world * (world - 1) / 2).float()


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free_disk(folder: str | None) -> float | None:
    if folder is None:
        return None
    place = Path(os.path.abspath(folder))
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    return usage.free / usage.total if usage.total else None


def _free_memory(path: str = "/proc/meminfo") -> float | None:
    try:
        rows = dict(line.split(":", 1) for line in Path(path).read_text().splitlines() if ":" in line)
        return int(rows["MemAvailable"].split()[0]) / int(rows["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError, ZeroDivisionError):
        return None


def judge(probes: Sequence[Probe]) -> list[Symptom]:
    """What the ranks' probes say, compared with each other; the same on every rank."""
    found = []
    for each in probes:
        if each.wrong_products:
            text = (
                f"{_named(each)} computes wrongly: {each.wrong_products:,} elements of a known matrix product"
            )
            found.append(Symptom(rank=each.rank, kind="corrupt", text=text))
    # A wrong sum is seen by those that were given it, and says nothing of who gave it.
    seeing = [each.rank for each in probes if each.wrong_sums]
    if seeing:
        ranks = ", ".join(map(str, seeing[:8])) + (f" and {len(seeing) - 8} more" if len(seeing) > 8 else "")
        text = f"a known all-reduce came wrong to rank {ranks}: a link or adapter"
        found.append(Symptom(rank=seeing[0], kind="corrupt", text=text))
    median = statistics.median(each.product_seconds for each in probes)
    for each in probes:
        if len(probes) > 2 and each.product_seconds > _SLOW * median:
            text = f"{_named(each)} is slow: a known product takes {each.product_seconds / median:.1f} of the median"
            found.append(Symptom(rank=each.rank, kind="slow", text=text))
        if each.free_disk is not None and each.free_disk < _LEAST_DISK_SHARE:
            text = f"{_named(each)} has {each.free_disk:.1%} of its disk free"
            found.append(Symptom(rank=each.rank, kind="full", text=text))
        if each.free_memory is not None and each.free_memory < _LEAST_MEMORY_SHARE:
            text = f"{_named(each)} has {each.free_memory:.1%} of its memory free"
            found.append(Symptom(rank=each.rank, kind="full", text=text))
    return found


def _named(each: Probe) -> str:
    return f"rank {each.rank} ({each.host})"
