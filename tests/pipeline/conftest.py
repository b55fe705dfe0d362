"""Fixtures of the pipeline's tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from pipeline.cluster.address import on_loopback
from pipeline.cluster.session import start_or_join
from tests.support.checkout import ROOT


@pytest.fixture(scope="module")
def small_ray() -> Iterator[None]:
    """A Ray cluster of our own, for the tests of one module.

    Ray keeps as many idle workers as there are CPUs, and a shuffle has two kinds of them: with two CPUs each exchange
    would start its workers anew (7 s instead of .3)."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # as pipeline.cluster.session does
    import ray

    assert not ray.is_initialized()
    options = {
        "num_cpus": 4,
        "resources": {"data": 1},
        "object_store_memory": 150_000_000,
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    with on_loopback():
        start_or_join("local", options)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of `small_ray`, whose workers find the steps of `tests.support`; several runs may share it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        request.getfixturevalue("small_ray")
        import ray

        yield str(ray.get_runtime_context().gcs_address)
