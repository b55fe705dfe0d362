"""Modules of trafilatura beside those that are patched."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def untouched(name: str) -> ModuleType:
    """A module of trafilatura, loaded once more: no patch of its own functions is in it."""
    file = importlib.import_module(f"trafilatura.{name}").__file__
    assert file is not None
    spec = importlib.util.spec_from_file_location(f"trafilatura.untouched_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for their module there
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module
