"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a property: no example is judged by the clock.
settings.register_profile("sluice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sluice")

# A shell starts its background jobs with SIGINT ignored, which we and the processes that tests start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder of real crawl files (`crawl/`, `native/`, …), named by SLUICE_TEST_DATA or lying beside the checkout."""
    folder = Path(os.environ.get("SLUICE_TEST_DATA", _BESIDE))
    if not (folder / "crawl").is_dir():
        pytest.skip(f"no real pages at {folder}: name a folder of crawl files in SLUICE_TEST_DATA to run this")
    return folder
