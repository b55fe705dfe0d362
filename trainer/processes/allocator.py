"""How the C library gives memory back to the kernel."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
"""mallopt(3)."""


def keep_freed_memory() -> None:
    """Have the C library keep what is freed for what is asked for next, instead of giving large pieces back
    at once.

    The logits of a micro-batch over a vocabulary of 100,000 are hundreds of megabytes, made anew for each:
    the kernel hands them out page by page, each zeroed, which took as long as the computing itself. Where the
    library is another than glibc, nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
