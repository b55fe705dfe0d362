"""A local S3-protocol server for tests, on a loopback port of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lineage.storage import folder as storage
from lineage.storage.folder import filesystem


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve S3 and point the usual AWS_* variables at it, with empty buckets `plain` and `versioned`.

    The server is a process of its own: deltalake waits for it without letting other threads of this one run."""
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_NO_SIGN_REQUEST", raising=False)
    serve = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    storage._filesystem.cache_clear()
    try:
        _wait_for(port)
        store = filesystem("s3://plain")
        for bucket in ("plain", "versioned"):
            store.mkdir(bucket)
        store.call_s3("put_bucket_versioning", Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
        yield
    finally:
        storage._filesystem.cache_clear()
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no server on port {port} after a minute")
