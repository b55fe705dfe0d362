"""Fixtures of the trainer's tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage.storage import folder as storage
from lineage.storage.folder import Folder


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An empty bucket `runs` on a server of its own; gives the environment that leads there."""
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    there = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    storage._filesystem.cache_clear()
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        storage.filesystem("s3://runs").mkdir("runs")
        yield there
    finally:
        server.kill()
        server.wait()
        storage._filesystem.cache_clear()


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """A run's output, empty: on disk, and in a bucket."""
    if request.param == "disk":
        return Folder(str(tmp_path))
    request.getfixturevalue("s3")
    return Folder("s3://runs/one")
