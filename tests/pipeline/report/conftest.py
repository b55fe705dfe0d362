"""The browser of the report's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes.chromium import chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all tests of a module."""
    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running
