"""The demo's crawl, made once for all tests of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.demo.crawl import Truth, make_crawl
from tests.support.made_once import made_once


@pytest.fixture(scope="session")
def demo_crawl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """Its folder, and what is planted in it; no test may write to it."""
    return made_once(tmp_path_factory, "demo-crawl", lambda folder: make_crawl(folder, num_pages=600))
