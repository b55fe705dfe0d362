"""How many requests to an object store one question costs, by kind, and how that grows with the store.

A local server that speaks S3 logs every request; each question is asked by a fresh process. With a round trip
of 20 to 50 ms and a few of them in parallel, requests are what a question takes on a real object store.

    python -m benchmarks.store_requests --rows 50000 500000
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import store
from lineage.storage.folder import Folder, filesystem

BUCKET = "sluice-benchmark"


def serve(log: Path) -> subprocess.Popen[bytes]:
    """Start the server and point this process and its children at it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=sink,
            stderr=sink,
        )
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    os.environ.update(dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any"))
    os.environ.update(dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), "us-east-1"))
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.2)


def requests(log: Path, offset: int) -> dict[str, int]:
    """The requests logged after byte `offset`, by method."""
    counts: dict[str, int] = {}
    for line in log.read_text(errors="replace")[offset:].splitlines():
        if "HTTP/1.1" in line:
            method = line.split('"')[1].split()[0].rsplit("m", 1)[-1]
            counts[method] = counts.get(method, 0) + 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 500_000], help="sizes to compare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        server = serve(log)
        try:
            filesystem(f"s3://{BUCKET}").mkdir(BUCKET)
            told: dict[str, dict[int, dict[str, int]]] = {}
            for rows in options.rows:
                out = Folder(f"s3://{BUCKET}/{rows}")
                samples = store.build(out, rows, scratch)
                for kind, name in store.questions(samples[len(samples) // 2]).items():
                    offset = len(log.read_text(errors="replace"))
                    store.ask(store.ASK, out.url, kind, name)
                    told.setdefault(kind, {})[rows] = requests(log, offset)
            print(json.dumps(told, indent=1))
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
