"""An S3 server for tests: a process of its own, since deltalake waits for it without letting other threads run.

A server takes seconds to import what it needs, so one that a test is done with is emptied and serves the next."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from lineage.storage import clients as storage

# The server binds its port itself and says which: one that was found free before could be another's by then.
_SERVE = """
import sys
import threading
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

# S3 looks at a condition and writes in one act. The server does these one after the other, so others may come between.
def alone(act, lock=threading.RLock()):
    def locked(self, *given, **named):
        with lock:
            return act(self, *given, **named)
    return locked

for name in ("put_object", "delete_object"):
    setattr(S3Response, name, alone(getattr(S3Response, name)))
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class _Server:
    """A running server, which ends with this process: its stdin is closed then."""

    process: subprocess.Popen[bytes]
    port: int


_idle: list[_Server] = []
"""Servers that nobody uses, without any bucket."""


@contextmanager
def s3_process() -> Iterator[dict[str, str]]:
    """A server without any bucket, ready; gives the environment that leads there."""
    pytest.importorskip("moto.server")
    server = _idle.pop() if _idle else _start()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
        }
    finally:
        storage._filesystem.cache_clear()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/moto-api/reset")
        assert connection.getresponse().status == 200
        connection.close()
        _idle.append(server)


def _start() -> _Server:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    return _Server(process, int(process.stdout.readline()))
