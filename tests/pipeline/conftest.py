"""Fixtures of the pipeline's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def small_ray() -> Iterator[None]:
    """A Ray cluster of our own with two processors, for the tests of one module."""
    import ray

    assert not ray.is_initialized()
    ray.init(
        address="local", num_cpus=2, object_store_memory=150_000_000, include_dashboard=False, log_to_driver=False,
        logging_level=logging.ERROR,
    )  # fmt: skip
    yield
    ray.shutdown()
