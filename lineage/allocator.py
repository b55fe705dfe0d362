"""How the C library holds memory for a process and gives it back to the kernel. Where it is another than glibc,
nothing here changes anything."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_MMAP_MAX: Final = -4
_M_ARENA_MAX: Final = -8
"""mallopt(3)."""
_LARGE: Final = 1 << 20
"""Bytes from which a piece is mapped alone and unmapped when it is freed."""


def keep_freed_memory() -> None:
    """Have the C library keep what is freed for what is asked for next, instead of giving large pieces back
    at once.

    The logits of a micro-batch over a vocabulary of 100,000 are hundreds of megabytes, made anew for each:
    the kernel hands them out page by page, each zeroed, which took as long as the computing itself."""
    _set(_M_MMAP_MAX, 0)
    _set(_M_TRIM_THRESHOLD, -1)


def use_one_heap() -> None:
    """Have Arrow, Python and every thread take memory from one heap, which `give_back_freed_memory` can shrink.
    Called before anything imports pyarrow.

    Arrow's own allocator keeps what is freed, and each thread of the C library has a heap of its own: a process that
    works in phases then holds the largest memory of each of them at once. So that large arrays leave no holes in the
    heap, they are mapped alone: by itself the library takes ever larger ones into the heap, up to 32 MB, once such a
    piece was freed."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    _set(_M_ARENA_MAX, 1)
    _set(_M_MMAP_THRESHOLD, _LARGE)


def give_back_freed_memory() -> None:
    """Give what is freed back to the kernel."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _set(option: int, value: int) -> None:
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(option, value)
