"""Small runs of the whole pipeline, and what makes two of them equal."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import tomli_w

from lineage.ids import content_hash
from lineage.storage.folder import Folder
from lineage.store.digest import logical_digest
from pipeline import process
from pipeline.phases.progress import Reporter
from pipeline.recipe import load

MADE_FROM_BYTES = ("shards/", "documents/", "dedup/", "index.json", "excerpts.parquet")
"""What must be equal byte for byte; the lineage tables are compared by their rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A folder of inputs and the patterns of its sources."""

    folder: Path
    sources: dict[str, tuple[str, ...]]


def recipe(out: str, sources: dict[str, tuple[str, ...]], **tables: dict[str, Any]) -> dict[str, Any]:
    """A recipe as TOML would say it: resiliparse for speed, more tables as given."""
    plain: dict[str, Any] = {
        "run": {"name": "test", "output": out},
        "source": [{"name": name, "inputs": list(inputs)} for name, inputs in sources.items()],
        "parse": {"extractor": "resiliparse"},
        "language": {"keep": ["en", "de", "fr", "es"]},
        "tokenize": {"shard_tokens": 20_000},
        "ray": {"num_cpus": 2},
    }
    for name, table in tables.items():
        plain[name] = {**plain.get(name, {}), **table}
    return plain


def write_recipe(path: Path, plain: dict[str, Any]) -> Path:
    """The recipe as a file."""
    path.write_text(tomli_w.dumps(plain))
    return path


def run(folder: Path, plain: dict[str, Any]) -> dict[str, Any]:
    """Carry the recipe out in this process; the content of run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    return process.run(load(write_recipe(folder / "recipe.toml", plain)), Reporter(quiet=True))


def fingerprint(out: str) -> dict[str, str]:
    """What law 1 speaks of: the hash of each file made from bytes, and the digest of each lineage table."""
    folder = Folder(out)
    files = {name: content_hash(folder.read(name)).hex() for name in folder.names() if name.startswith(MADE_FROM_BYTES)}
    return files | {f"lineage/{name}": digest for name, digest in logical_digest(folder).items()}


def summary_of(out: str) -> dict[str, Any]:
    """run.json of an output."""
    plain: dict[str, Any] = json.loads(Folder(out).read("run.json"))
    return plain


@contextmanager
def s3_server(bucket: str, versioned: bool = False) -> Iterator[None]:
    """A local server that speaks S3, its address and keys in the environment, with one bucket. It is a process of its
    own: deltalake waits for it without letting other threads of this one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        _wait_for(port)
        client = boto3.client("s3")
        client.create_bucket(Bucket=bucket)
        if versioned:
            client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        yield
    finally:
        server.terminate()
        server.wait()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wait_for(port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"no S3 server on port {port} after 30 s")
