"""A proxy before an object store that fails and lies, by a seeded plan: 500, 503, slow answers, bodies cut
short, connections reset before the store was asked, and reset after it has done what it was asked (the answer
is lost), listings that are what the last one of the same question was (late). At a chosen request it can pause with
all later ones, so that another command meets the first in the middle.

A process of its own, as the store is: deltalake waits for it without letting other threads run."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from lineage.storage.lock import LEASE_FILE
from tests.support.checkout import ROOT
from tests.support.stores.loopback import Handler, serving

_PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """The shares of requests that go wrong, each way; and outages, which begin at a share of the requests and
    refuse so many in a row that every retry of a client fails. `first` names what happens to the first
    requests, one by one. `pause_at` counts requests but those for a lease, from 0: a paused command is slow, not
    dead."""

    seed: int = 0
    first: tuple[str, ...] = ()
    error: float = 0.0
    busy: float = 0.0
    slow: float = 0.0
    cut: float = 0.0
    reset: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    outage: float = 0.0
    outage_requests: int = 0
    slow_seconds: float = 0.2
    pause_at: int | None = None


class Faults:
    """Draws what happens to each request, and notes what did, a line each."""

    def __init__(self, plan: FaultPlan, notes: Path) -> None:
        self._plan, self._notes = plan, notes
        self.slow_seconds = plan.slow_seconds
        self._lock, self._random, self._left = threading.Lock(), random.Random(plan.seed), 0
        self._first = list(plan.first)
        self._num, self._resumed = 0, threading.Event()

    def draw(self, method: str, path: str) -> str:
        with self._lock:
            kind = self._kind()
            with open(self._notes, "a") as file:
                file.write(f"{kind} {method} {path}\n")
            return kind

    def wait(self, path: str) -> None:
        """Hold this request back if the plan pauses at it or at an earlier one, until `resume`."""
        if self._plan.pause_at is None or urlsplit(path).path.endswith(f"/{LEASE_FILE}"):
            return
        with self._lock:
            number, self._num = self._num, self._num + 1
        if number == self._plan.pause_at:
            print(_PAUSED, flush=True)
        if number >= self._plan.pause_at:
            self._resumed.wait()

    def resume(self) -> None:
        self._resumed.set()

    def _kind(self) -> str:
        if self._first:
            return self._first.pop(0)
        if self._left:
            self._left -= 1
            return "outage"
        at = self._random.random()
        for kind in ("error", "busy", "slow", "cut", "reset", "lost", "late", "outage"):
            share = getattr(self._plan, kind)
            if at < share:
                self._left = self._plan.outage_requests if kind == "outage" else 0
                return kind
            at -= share
        return "fine"


class Proxy(Handler):
    """Passes requests on to the store at `store`, host and port, or does with them what `faults` draws."""

    store: str
    faults: Faults
    listings: ClassVar[dict[str, tuple[int, HTTPMessage, bytes]]] = {}

    def answer(self) -> None:
        body = self._take_body()
        self.faults.wait(self.path)
        kind = self.faults.draw(self.command, self.path)
        if kind in ("error", "busy", "outage"):
            self._refuse(*((500, "InternalError") if kind == "error" else (503, "SlowDown")))
            return
        if kind == "reset":
            self._reset()
            return
        if kind == "slow":
            time.sleep(self.faults.slow_seconds)
        asked = self._ask(body)
        if self.command == "GET" and "list-type" in self.path:
            before, self.listings[self.path] = self.listings.get(self.path, asked), asked
            asked = before if kind == "late" else asked
        status, headers, answer = asked
        if kind == "lost":
            self._reset()
            return
        self._send(status, headers, answer, cut=kind == "cut" and len(answer) > 1)

    def _take_body(self) -> bytes:
        """The body of this request."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(length))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers: the checksum of a body that is not looked at here
        return b"".join(pieces)

    def _ask(self, body: bytes) -> tuple[int, HTTPMessage, bytes]:
        """What the store answers to this request: status, headers and body."""
        store = HTTPConnection(self.store, timeout=300)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "expect")
        }
        try:
            store.request(
                self.command, self.path, body=body or None, headers=headers | {"Connection": "close"}
            )
            reply = store.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            store.close()

    def _send(self, status: int, headers: HTTPMessage, answer: bytes, cut: bool = False) -> None:
        """Answer so; `cut`: half the body, and no more."""
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(answer))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(answer[: len(answer) // 2] if cut else answer)
        if cut:
            self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        told = f"<Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()
        text = b"" if self.command == "HEAD" else told
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _reset(self) -> None:
        # Closed without lingering, a connection is reset and not ended.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
        self.wfile = _Nowhere()  # type: ignore[assignment]


class _Nowhere:
    """Where the server's last flush goes once the connection is gone."""

    closed = True

    def write(self, data: bytes) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def failing_store(
    store: str, plan: FaultPlan, notes: Path, meet: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """The URL behind which the store at URL `store` fails by `plan`; what it did is noted in the file
    `notes`. `meet()` is called when the request of `pause_at` waits; when it returns, all go on."""
    told = [sys.executable, "-m", "tests.support.stores.failing_store", store, repr(asdict(plan)), str(notes)]
    proxy = subprocess.Popen(told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert proxy.stdin is not None and proxy.stdout is not None
    to_proxy, from_proxy = proxy.stdin, proxy.stdout

    def follow() -> None:
        for line in from_proxy:
            assert line.strip() == _PAUSED
            try:
                meet()
            finally:
                to_proxy.write("\n")
                to_proxy.flush()

    url = f"http://127.0.0.1:{int(from_proxy.readline())}"
    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield url
    finally:
        proxy.kill()
        thread.join()
        to_proxy.close()
        from_proxy.close()
        proxy.wait()


def noted(notes: Path) -> Counter[str]:
    """How often each thing happened."""
    return Counter(line.split()[0] for line in notes.read_text().splitlines())


def num_requests(notes: Path) -> int:
    """How many requests came, without those for a lease."""
    paths = (urlsplit(line.split(maxsplit=2)[2]).path for line in notes.read_text().splitlines())
    return sum(not path.endswith(f"/{LEASE_FILE}") for path in paths)


def main() -> None:
    from ast import literal_eval

    store, plan, notes = sys.argv[1:]
    faults = Faults(FaultPlan(**literal_eval(plan)), Path(notes))
    with serving(Proxy, store=urlsplit(store).netloc, faults=faults) as url:
        print(urlsplit(url).port, flush=True)
        for _ in sys.stdin:
            faults.resume()


if __name__ == "__main__":
    main()
