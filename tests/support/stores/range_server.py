"""A web server over a folder that answers ranges, fails on purpose by a plan, and counts what was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from tests.support.stores.loopback import Handler, serving

Fault = Literal["busy", "cut", "other range", "parts", "whole", "moved"] | None


@dataclass
class Asked:
    """A request for bytes: the file below the root, its first byte and the one behind the last."""

    name: str
    begin: int
    end: int


@dataclass
class Ranges:
    """`fault` says by the number of the request for bytes, from 0, and the file, how it fails. `asked` are these
    requests, `most_at_once` how many were answered at the same time."""

    fault: Callable[[int, str], Fault] = lambda number, name: None
    asked: list[Asked] = field(default_factory=list)
    under_way: int = 0
    most_at_once: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class _RangeHandler(Handler):
    root: Path
    ranges: Ranges

    def answer(self) -> None:
        name = unquote(self.path.split("?")[0].lstrip("/"))
        file = self.root / name
        if not file.is_file():
            self._head(404, 0)
            return
        size = file.stat().st_size
        begin, end = 0, size
        asked = self.headers.get("Range")
        if asked:
            low, _, high = asked.removeprefix("bytes=").partition("-")
            begin, end = int(low), min(int(high) + 1, size) if high else size
        if begin >= size:
            self._head(416, 0)
            return
        fault: Fault = None
        if self.sends_body:
            with self.ranges.lock:
                fault = self.ranges.fault(len(self.ranges.asked), name)
                self.ranges.asked.append(Asked(name, begin, end))
                self.ranges.under_way += 1
                self.ranges.most_at_once = max(self.ranges.most_at_once, self.ranges.under_way)
        try:
            self._send(file, begin, end, size, fault, is_partial=asked is not None)
        finally:
            if self.sends_body:
                with self.ranges.lock:
                    self.ranges.under_way -= 1

    def _send(self, file: Path, begin: int, end: int, size: int, fault: Fault, *, is_partial: bool) -> None:
        if fault == "busy":
            self._head(503, 0)
            return
        if fault == "moved":
            self.send_response(302)
            self.send_header("Location", f"{self.path}?again")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "whole":
            begin, end, is_partial = 0, size, False
        if fault == "other range":
            begin, end = max(begin - 7, 0), max(end - 7, 0)
        with open(file, "rb") as source:
            source.seek(begin)
            body = source.read(end - begin)
        if fault == "parts":
            self._head(206, 0, content_type="multipart/byteranges; boundary=B")
            return
        content_range = f"bytes {begin}-{end - 1}/{size}" if is_partial else None
        self._head(206 if is_partial else 200, len(body), content_range)
        if fault == "cut":
            body, self.close_connection = body[: len(body) // 2], True
        if self.sends_body:
            self.wfile.write(body)

    def _head(
        self,
        status: int,
        length: int,
        content_range: str | None = None,
        content_type: str = "binary/octet-stream",
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Type", content_type)
        self.send_header("ETag", '"0"')
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()


@contextmanager
def range_server(root: Path, ranges: Ranges) -> Iterator[str]:
    """The files below `root` under the URL that is given, until the block ends."""
    with serving(_RangeHandler, root=root, ranges=ranges) as url:
        ranges.url = url
        yield url
