"""A worker of two gigabytes lives through every small input that unfolds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stages.reading.test_memory import BOMBS
from tests.support.outputs.runs import recipe, write_recipe

GIB = 1 << 30
DO_UNITS = """
import sys
from dataclasses import replace
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from pipeline.phases.read import read_job, read_unit

wanted = load(sys.argv[1])
plan = plan_run(wanted)
job = replace(read_job(wanted), key=plan.key)
for unit in plan.units:
    read_unit(job, unit)
print(next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
def test_one_process_reads_all_bombs_one_after_another_in_less_than_two_gigabytes(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    for name, (make, _) in BOMBS.items():
        (inputs / name).write_bytes(make())
    wanted = write_recipe(
        tmp_path / "recipe.toml", recipe(str(tmp_path / "out"), {"bad": (str(inputs / "*"),)})
    )
    done = subprocess.run(
        [sys.executable, "-c", DO_UNITS, str(wanted)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 1.5 * GIB, f"{int(done.stdout) / GIB:.2f} GiB"
