"""Servers on loopback that speak the protocols of Google Cloud Storage and Azure Blob Storage."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lineage.storage import clients as storage
from lineage.storage.folder import filesystem

_SERVE = """
import sys
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
server.start()
print(server._api._httpd.server_address[1], flush=True)
sys.stdin.read()
"""
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's published key of its one account; it opens nothing else."""


@contextmanager
def google_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """gs://bucket, empty, with Google's default of keeping deleted objects for seven days."""
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    server = subprocess.Popen([sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{int(server.stdout.readline())}")
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        storage._filesystem.cache_clear()
        yield
    finally:
        storage._filesystem.cache_clear()
        server.kill()
        server.communicate()


def keep_nothing_deleted() -> None:
    """Switch gs://bucket's soft delete off."""
    filesystem("gs://bucket").call(
        "PATCH", "b/{}", "bucket", json={"softDeletePolicy": {"retentionDurationSeconds": "0"}}
    )


@contextmanager
def azure_server(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """az://container, empty, served by Azurite, which npm installs and this machine may not have."""
    pytest.importorskip("adlfs")
    azurite = shutil.which("azurite-blob")
    if azurite is None:
        pytest.skip("azurite-blob is not installed (npm install azurite)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    at = ["--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    server = subprocess.Popen(
        [azurite, *at, "--silent", "--skipApiVersionCheck", "--disableTelemetry"],
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        _wait_for(port)
        monkeypatch.setenv(
            "AZURE_STORAGE_CONNECTION_STRING",
            f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={_AZURE_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;",
        )
        storage._filesystem.cache_clear()
        filesystem("az://container").mkdir("container")
        yield
    finally:
        storage._filesystem.cache_clear()
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    for _ in range(600):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(f"nothing listens on port {port}")
