"""A web server that speaks enough S3 for reading (GET with Range) and fails on purpose, repeatably."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.stores.loopback import Handler, serving


@dataclass
class Faults:
    """Shares of requests for shards that go wrong, and the speed of the rest. A hang is silence, then a
    cut."""

    error: float = 0.0
    short: float = 0.0
    wrong: float = 0.0
    hang: float = 0.0
    hang_seconds: float = 1.0
    bytes_per_second: float = 1e12
    seed: int = 0
    digests_too: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    bytes_sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self, name: str) -> str:
        """What happens to this request."""
        if not name.endswith((".bin", ".blocks") if self.digests_too else ".bin"):
            return "fine"
        mark = "" if name.endswith(".bin") else " .blocks"
        with self.lock:
            self.counts[f"requests{mark}"] += 1
            at = random.Random(f"{self.seed}:{self.counts[f'requests{mark}']}{mark}").random()
            for kind in ("error", "short", "wrong", "hang"):
                share = getattr(self, kind)
                if at < share:
                    self.counts[kind + mark] += 1
                    return kind
                at -= share
        return "fine"


class _FailingHandler(Handler):
    root: Path
    faults: Faults

    def answer(self) -> None:
        file = self.root / self.path.split("?")[0].lstrip("/")
        if not file.is_file():
            body = b"<Error><Code>NoSuchKey</Code></Error>"
            self._head(404, len(body))
            self.wfile.write(body if self.sends_body else b"")
            return
        size = file.stat().st_size
        first, last = 0, size - 1
        asked = self.headers.get("Range")
        if asked:
            low, _, high = asked.removeprefix("bytes=").partition("-")
            first, last = int(low), min(int(high), size - 1) if high else size - 1
        with open(file, "rb") as source:
            source.seek(first)
            body = source.read(last - first + 1)
        fault = self.faults.draw(file.name) if self.sends_body else "fine"
        if fault == "error":
            self._head(503, 0)
            return
        if fault == "hang":
            time.sleep(self.faults.hang_seconds)
            self.close_connection = True
            return
        if fault == "wrong":
            body = body[:-1] + bytes([body[-1] ^ 1])
        self._head(206 if asked else 200, len(body), f"bytes {first}-{last}/{size}" if asked else None)
        if fault == "short":
            body, self.close_connection = body[: len(body) // 2], True
        if self.sends_body:
            self._send(body)

    def _send(self, body: bytes) -> None:
        piece = 1 << 18
        for low in range(0, len(body), piece):
            self.wfile.write(body[low : low + piece])
            time.sleep(min(piece, len(body) - low) / self.faults.bytes_per_second)
        with self.faults.lock:
            self.faults.bytes_sent += len(body)

    def _head(self, status: int, length: int, content_range: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"0"')
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()


@contextmanager
def failing_server(root: Path, faults: Faults) -> Iterator[str]:
    """The files below `root` under the URL that is given, until the block ends."""
    with serving(_FailingHandler, root=root, faults=faults) as url:
        yield url
