"""A local Ray without the processes that only a cluster needs: half of what a short run costs.

Ray 2.60 starts an autoscaler, a log monitor and a dashboard server beside each local Ray, and Ray Data two
actors: one collects metrics for the dashboard, the other passes requests on to the autoscaler. Each is a
Python process that imports Ray. A machine of its own has no node to add and shows no dashboard, and workers'
logs are not printed. But `ray.init` passes no such option on, and Ray Data has none. So these functions set
them from outside, as Ray 2.60.0 has them; any other version of Ray starts as it is."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

_VERSION: Final = "2.60.0"
"""The version of Ray whose private names are replaced here."""
_DRIVER_LEVEL: Final = "RAY_BACKEND_LOG_LEVEL"


@contextmanager
def without_cluster_processes() -> Iterator[None]:
    """A local Ray that `ray.init` starts in the block has no autoscaler, log monitor or dashboard server.

    Whether the agent's packages are installed is not tried by importing all of them: they are required."""
    import ray
    from ray._private import node, parameter, utils

    with ExitStack() as stack:
        if ray.__version__ == _VERSION:
            params = functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)
            stack.enter_context(_replaced(parameter, "RayParams", params))
            stack.enter_context(_replaced(node.Node, "start_api_server", lambda self, **options: None))
            stack.enter_context(_replaced(utils, "get_dashboard_dependency_error", lambda: None))
        yield


@contextmanager
def without_cluster_actors() -> Iterator[None]:
    """Datasets that are executed in the block keep their counts in this process, and what the connected Ray
    has now is what they may use: there are neither an actor for metrics nor one for requests to an
    autoscaler. `Dataset.stats` is what it was. For a local Ray that serves this process alone."""
    import ray
    import ray.data
    from ray.data._internal import stats
    from ray.data._internal.execution import streaming_executor

    with ExitStack() as stack:
        if ray.__version__ == _VERSION:
            autoscaler = _fixed_resources()
            stack.enter_context(_replaced(stats, "get_or_create_stats_actor", _NoActor))
            stack.enter_context(
                _replaced(
                    streaming_executor, "create_cluster_autoscaler", lambda *given, **options: autoscaler
                )
            )
        yield


@contextmanager
def without_driver_lines() -> Iterator[None]:
    """The process that `ray.init` connects in the block writes nothing of Ray's core to the terminal.

    Ray's servers have their logs; the core of a driver writes its errors to stderr besides, such as a line of
    advice to Ray Data on each pool of actors. What is an error to us is raised. The variable is read by each
    process as it starts, and the servers are to write all that they find wrong: so it is set when they run
    already."""
    import ray
    from ray._private import worker

    with ExitStack() as stack:
        if ray.__version__ == _VERSION and _DRIVER_LEVEL not in os.environ:
            connect = worker.connect

            def quiet(*given: Any, **options: Any) -> Any:
                os.environ[_DRIVER_LEVEL] = "fatal"
                try:
                    with _without_lines_of(_DRIVER_LEVEL):  # that the variable is set is a line of its own
                        return connect(*given, **options)
                finally:
                    del os.environ[_DRIVER_LEVEL]

            stack.enter_context(_replaced(worker, "connect", quiet))
        yield


@contextmanager
def _without_lines_of(words: str) -> Iterator[None]:
    """What this process writes to its stderr in the block, native code too, appears behind the block, but for
    lines that hold `words`."""
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            held.seek(0)
            left = b"".join(line for line in held if words.encode() not in line)
            os.write(2, left)


class _NoActor:
    """In place of an actor's handle: every method exists, and calling it remotely does nothing."""

    def __getattr__(self, name: str) -> _NoActor:
        return self

    def remote(self, *given: Any, **options: Any) -> None:
        """Nothing, at once."""


def _fixed_resources() -> Any:
    """Ray Data's autoscaler of a cluster that never grows."""
    import ray
    from ray.data._internal.cluster_autoscaler.base_cluster_autoscaler import ClusterAutoscaler
    from ray.data._internal.execution.interfaces import ExecutionResources

    total = ExecutionResources.from_resource_dict(ray.cluster_resources())

    class FixedResources(ClusterAutoscaler):  # type: ignore[misc]  # a class of Ray's
        def try_trigger_scaling(self) -> None:
            """There is no node to ask for."""

        def on_executor_shutdown(self) -> None:
            """Nothing was asked for."""

        def get_total_resources(self) -> Any:
            return total

    return FixedResources()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` in the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
