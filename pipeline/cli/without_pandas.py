"""Keep pandas out of a process that works with Arrow alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def leave_pandas_out() -> None:
    """Have pyarrow find no pandas in this process, which nothing here needs: it looks for it at the first
    array, and importing it takes a third of a second. A later `import pandas` works; `to_pandas` of what is
    Arrow's does not.

    Not for a process in which a user's own code or Ray Data works."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    sys.meta_path.insert(0, _NoPandas())
    try:
        pa.array([0])
    finally:
        sys.meta_path.pop(0)


class _NoPandas:
    """A finder in whose sight there is no pandas."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("left out of this process", name=name)
        return None
