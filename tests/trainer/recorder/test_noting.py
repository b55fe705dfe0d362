"""What notes operations is one source that runs compiled, and as it stands where nothing was compiled."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import mmap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import trainer.recorder
from trainer.recorder import noting


@pytest.fixture(scope="module")
def plain() -> ModuleType:
    """The module from its source."""
    path = str(Path(next(iter(trainer.recorder.__path__))) / "noting.py")
    loader = importlib.machinery.SourceFileLoader("plain_noting", path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def noted(module: ModuleType) -> bytes:
    """Three operations in a ring of two, of which the first and the last end."""
    with mmap.mmap(-1, 128) as memory:
        entries: Any = module.Entries(memory, 0, 2)
        numbers = [entries.note(site, 7, site + 1, 1 << 40, -1, float(site)) for site in range(3)]
        entries.note_end(numbers[0], 9.0)  # overwritten by the third
        entries.note_end(numbers[2], 9.5)
        del entries
        return memory[:]


def test_the_source_writes_what_the_compiled_module_writes(plain: ModuleType) -> None:
    assert type(plain.Entries.note) is not type(noting.Entries.note)  # the compiled one is there
    assert noted(plain) == noted(noting)
    rows = list(noting.OPERATION.iter_unpack(noted(plain)))
    assert [row[:6] for row in rows] == [(2, 1, -1, 7, 2, 1 << 40), (3, 2, -1, 7, 3, 1 << 40)]
    assert math.isnan(rows[0][7]) and rows[1][6:] == (2.0, 9.5)
