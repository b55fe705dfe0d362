"""One local Ray that the tests of several modules use, one module after the other.

A start takes 10 s of processor time, a small run 2. So the Ray of one module stays up for the next, until a file
comes of which no test asks for it."""

from __future__ import annotations

import logging
import os
import sys
import tempfile

from tests.support.checkout import ROOT
from tests.support.processes.forked_workers import FORKED, WorkerServer
from tests.support.steps.model_steps import EVENTS

OPTIONS = {
    "num_cpus": 4,
    "resources": {"data": 1},
    "object_store_memory": 150_000_000,
    "include_dashboard": False,
    "log_to_driver": False,
    "logging_level": logging.ERROR,
}
"""Ray keeps as many idle workers as there are CPUs, and a shuffle has two kinds of them: with two CPUs each
exchange would start its workers anew (7 s instead of .3)."""


class SharedRay:
    """The Ray of this process. Its workers find the steps of `tests.support`, and the folder that EVENTS
    names."""

    def __init__(self) -> None:
        self.is_up = False
        self._workers = WorkerServer()
        self._environment: dict[str, str | None] = {}
        self._events: tempfile.TemporaryDirectory[str] | None = None

    def start(self) -> None:
        """Nothing where it is up."""
        if self.is_up:
            return
        from pipeline.cluster.address import on_loopback
        from pipeline.cluster.environment import set_ray_environment
        from pipeline.cluster.session import start_or_join

        set_ray_environment()
        import ray

        assert not ray.is_initialized()
        self._events = tempfile.TemporaryDirectory()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        for name, value in ({"PYTHONPATH": path, EVENTS: self._events.name} | FORKED).items():
            self._environment[name] = os.environ.get(name)
            os.environ[name] = value
        try:
            with on_loopback(), self._workers.forks():
                start_or_join("local", OPTIONS)
        except BaseException:
            self._clean_up()
            raise
        self.is_up = True

    def stop(self) -> None:
        """Nothing where it is not up."""
        if not self.is_up:
            return
        self.is_up = False
        sys.modules["ray"].shutdown()
        self._clean_up()

    def end(self) -> None:
        """Stop, and start no more."""
        self.stop()
        self._workers.end()

    def _clean_up(self) -> None:
        for name, value in self._environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        assert self._events is not None
        self._events.cleanup()


SHARED = SharedRay()
