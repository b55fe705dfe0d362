"""What is freed stays with the process, or goes back, as the process asks."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.checkout import ROOT

FAULTS = """
import resource, sys
import numpy as np
from lineage.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
np.ones(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    np.ones(8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

HELD = """
import os, sys
from lineage.allocator import give_back_freed_memory, use_one_heap
if sys.argv[1] == "in one place":
    use_one_heap()
import psutil
import pyarrow as pa

def resident():
    return psutil.Process().memory_info().rss

pa.array([0])  # which imports more
before = resident()
# In pieces too small for pages of their own; the last one keeps the top of the heap from being given back.
pieces = [pa.array(range(8_000)) for _ in range(1_000)]
last = pieces[-1]
del pieces
if sys.argv[2] == "given back":
    give_back_freed_memory()
print((resident() - before) >> 20)
"""

HOLES = """
import sys
from lineage.allocator import use_one_heap
if sys.argv[1] == "in one place":
    use_one_heap()
import numpy as np
import psutil

np.ones(4_000_000)  # the library has learnt that pieces of 32 MB come and go
before = psutil.Process().memory_info().rss
pieces = [(np.ones(1_000_000), np.ones(1_000)) for _ in range(8)]
small = [piece[1] for piece in pieces]
del pieces
print((psutil.Process().memory_info().rss - before) >> 20)
"""


def printed(script: str, *arguments: str) -> int:
    command = [sys.executable, "-c", script, *arguments]
    # A run in the process of these tests may have named Arrow's pool.
    plain = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    return int(subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, check=True).stdout)


def test_a_large_piece_that_is_asked_for_again_is_handed_out_once() -> None:
    """Pages that the kernel handed out for 64 MB that are asked for five times."""
    assert printed(FAULTS, "kept") * 100 < printed(FAULTS, "given back")


def test_what_arrow_freed_is_given_back_below_a_piece_that_is_still_in_use() -> None:
    """Megabytes that a process holds after it has freed 62 of Arrow's."""
    assert printed(HELD, "in one place", "given back") * 4 < printed(HELD, "in one place", "kept")
    assert printed(HELD, "in one place", "given back") * 4 < printed(HELD, "as it is", "given back")


def test_large_pieces_between_small_ones_go_back_as_they_are_freed() -> None:
    """Megabytes that a process holds after it has freed 64, with a small piece behind each 8."""
    assert printed(HOLES, "in one place") * 4 < printed(HOLES, "as it is")
