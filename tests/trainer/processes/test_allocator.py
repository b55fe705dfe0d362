"""What is freed stays with the process."""

from __future__ import annotations

import subprocess
import sys

from tests.support.checkout import ROOT

SCRIPT = """
import resource, sys
import numpy as np
from trainer.processes.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
np.ones(8_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    np.ones(8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str) -> int:
    """Pages that the kernel handed out for 64 MB that are asked for five times."""
    return int(
        subprocess.run([sys.executable, "-c", SCRIPT, way], cwd=ROOT, capture_output=True, check=True).stdout
    )


def test_a_large_piece_that_is_asked_for_again_is_handed_out_once() -> None:
    assert faults("kept") * 100 < faults("given back")
