"""Worker processes of Ray, forked from one that has imported what they need: a start takes .1 s of processor
time, and not the 2.5 s of two Pythons and their imports, 7 s where a worker needs an encoder.

    1. server     imports the modules, waits at a socket and forks for each request
    2. request    what Ray starts in place of its own `setup_worker.py`: hands its arguments, environment and open
                  files to the server, and ends
    3. worker     the forked process: Ray's own `default_worker.py` runs in it as if it had been started

A worker of another driver's job, or with a runtime environment that a forked process cannot have, is started
as Ray starts it."""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SOCKET = "SLUICE_TEST_WORKER_SERVER"
"""The variable that names the server's socket."""

_SETUP = "SLUICE_TEST_WORKER_SETUP"
"""The variable that names Ray's own `setup_worker.py`."""

FORKED = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
"""Variables of a Ray whose workers are forked: those that it starts before it knows of a job would not be."""

_PRELOADED = (
    "ray._private.workers.default_worker", "ray.data", "ray.data._internal.execution.operators.map_operator",
    "ray.data._internal.execution.operators.actor_pool_map_operator",
    "pipeline.process", "pipeline.phases.read", "pipeline.model_steps.work", "pipeline.refilter.unit",
    "tests.support.steps.model_steps", "torch", "transformers.models.bert.modeling_bert",
)  # fmt: skip
"""What workers import, the last two for encoders."""

_READ_WHEN_USED = {"RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"}
"""Variables of runtime environments (Ray Train's) that nothing reads as it is loaded, so that a forked worker
may have them."""

_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language="
_JOB = "01000000"
"""The driver that started Ray is its first job."""
_LENGTH = struct.Struct("!I")


class WorkerServer:
    """The server, from its first use on."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @contextmanager
    def forks(self) -> Iterator[None]:
        """A Ray that starts in the block forks its workers, as long as it is up."""
        from unittest.mock import patch

        from ray._private import ray_constants, workers

        if self._process is None:
            self._folder = tempfile.TemporaryDirectory()
            os.environ[_SOCKET] = os.path.join(self._folder.name, "socket")
            os.environ[_SETUP] = os.path.join(workers.__path__[0], ray_constants.SETUP_WORKER_FILENAME)
            self._process = self._started(self._folder.name)
        assert self._process.poll() is None, "the server of Ray's workers has ended"
        with patch.object(
            ray_constants, "SETUP_WORKER_FILENAME", __file__
        ):  # joined to a folder: stays as it is
            yield

    def _started(self, folder: str) -> subprocess.Popen[bytes]:
        said = Path(folder, "said")
        with said.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, __file__, os.environ[_SOCKET]],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
            )
        while not os.path.exists(os.environ[_SOCKET]):
            assert process.poll() is None, said.read_text()
            time.sleep(0.05)
        return process

    def end(self) -> None:
        """Nothing where it was not used."""
        if self._process is None:
            return
        assert self._process.stdin is not None and self._folder is not None
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()
        del os.environ[_SOCKET], os.environ[_SETUP]
        self._process = None


def request() -> None:
    """In place of `setup_worker.py`, with its arguments."""
    own = [argument for argument in sys.argv[1:] if argument.startswith((_CONTEXT, _LANGUAGE))]
    context = next((argument[len(_CONTEXT) :] for argument in own if argument.startswith(_CONTEXT)), "{}")
    variables = _variables(json.loads(context))
    if variables is None or f"{_LANGUAGE}PYTHON" not in own or os.environ.get("RAY_JOB_ID") != _JOB:
        os.execv(sys.executable, [sys.executable, os.environ[_SETUP], *sys.argv[1:]])
    arguments = [argument for argument in sys.argv[1:] if argument not in own]
    message = json.dumps([arguments, {**os.environ, **variables}, os.getcwd()]).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[_SOCKET])
        socket.send_fds(server, [_LENGTH.pack(len(message))], [0, 1, 2])
        server.sendall(message)
        server.recv(1)  # it has forked


def _variables(context: dict[str, Any]) -> dict[str, str] | None:
    """What a runtime environment adds to a worker's; None where a forked worker cannot have it."""
    variables: dict[str, str] = context.get("env_vars", {})
    others = {name: value for name, value in context.items() if name != "env_vars" and value}
    if others.pop("py_executable", sys.executable) != sys.executable or others:
        return None
    return variables if variables.keys() <= _READ_WHEN_USED else None


def serve() -> None:
    """Until stdin ends."""
    import gc
    import importlib

    # Ray's core reads these two as it is loaded, and no later. A worker ends where that process has ended.
    os.environ |= {"RAY_JOB_ID": _JOB, "RAY_RAYLET_PID": str(os.getpid())}
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    threads = {Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task")}
    # jemalloc starts its own anew in a forked process; no other thread would live on there.
    assert threads <= {Path("/proc/self/comm").read_text(), "jemalloc_bg_thd\n"}, threads
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as waiting:
        listening.bind(sys.argv[1])
        listening.listen(64)
        waiting.register(listening, selectors.EVENT_READ)
        waiting.register(sys.stdin, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in waiting.select(timeout=1)]
            _reap()
            if sys.stdin in ready:
                return None
            if listening in ready:
                connection, _ = listening.accept()
                with connection:
                    asked, files = _read(connection)
                    if asked and os.fork() == 0:
                        for ours in (waiting, listening, connection):
                            ours.close()
                        return _become_worker(*json.loads(asked), files)
                    for file in files:
                        os.close(file)


def _read(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The message of a request and the files that came with it; an empty one where the request was killed
    meanwhile, as Ray does with starts that are under way when it ends."""
    length, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    if len(length) < _LENGTH.size:
        return b"", files
    (expected,) = _LENGTH.unpack(length)
    message = connection.recv(expected, socket.MSG_WAITALL)
    return message if len(message) == expected else b"", files


def _reap() -> None:
    """The workers that have ended, so that their processor time counts as ours."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _become_worker(arguments: list[str], environment: dict[str, str], folder: str, files: list[int]) -> None:
    import runpy

    from ray._raylet import Config

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    Config.initialize("")  # what Ray's core read of the server's own environment
    sys.argv = arguments
    sys.path[0] = os.path.dirname(arguments[0])
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve()
    else:
        request()
