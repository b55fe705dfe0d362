"""pandas stays out of a process that works with Arrow alone, and may still come into it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from pipeline.cli.without_pandas import leave_pandas_out
leave_pandas_out()
import pyarrow as pa, pyarrow.parquet, pyarrow.dataset
assert pa.array([1, 2]).to_pylist() == [1, 2]
assert "pandas" not in sys.modules
import pandas
assert pandas.Series([1]).sum() == 1
"""


def test_arrow_works_without_pandas_which_may_still_be_imported() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True)
