"""A proxy before an object store that lets a command stand still at a chosen request, with all its others.

A process of its own, as the store is. The lease of an output is renewed all the while: a command that stands
still is slow, not dead."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from lineage.storage.lock import LEASE_FILE
from tests.support.checkout import ROOT
from tests.support.stores.failing_store import Proxy
from tests.support.stores.loopback import serving

_PAUSED = "paused"


@dataclass(eq=False)
class Passed:
    """Where the proxy answers, and once the block has ended the number of requests that came, without those
    of a lease."""

    url: str
    num: int = 0


@contextmanager
def pausing_store(store: str, at: int | None, meet: Callable[[], None]) -> Iterator[Passed]:
    """The store at URL `store`; `meet()` is called when request `at` (from 0) has come and waits, and all go
    on when it returns. None: nothing waits."""
    told = [sys.executable, "-m", "tests.support.stores.pausing_store", store, str(-1 if at is None else at)]
    proxy = subprocess.Popen(told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert proxy.stdin is not None and proxy.stdout is not None
    passed = Passed(f"http://127.0.0.1:{int(proxy.stdout.readline())}")

    def follow() -> None:
        assert proxy.stdin is not None and proxy.stdout is not None
        for line in proxy.stdout:
            if line.strip() != _PAUSED:
                passed.num = int(line)
                return
            try:
                meet()
            finally:
                proxy.stdin.write("\n")
                proxy.stdin.flush()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield passed
    finally:
        proxy.stdin.close()
        thread.join()
        proxy.wait()


class _Gate:
    """Counts requests, and holds back that of a number and all behind it."""

    def __init__(self, at: int) -> None:
        self.num, self._at = 0, at
        self._counting, self._opened = threading.Lock(), threading.Event()

    def wait(self) -> None:
        with self._counting:
            number, self.num = self.num, self.num + 1
        if number == self._at:
            print(_PAUSED, flush=True)
        if 0 <= self._at <= number:
            self._opened.wait()

    def open(self) -> None:
        self._opened.set()


class _PausingProxy(Proxy):
    gate: _Gate

    def answer(self) -> None:
        body = self.take_body()
        if not urlsplit(self.path).path.endswith(f"/{LEASE_FILE}"):
            self.gate.wait()
        self.send(*self.ask(body))


def main() -> None:
    store, at = sys.argv[1:]
    gate = _Gate(int(at))
    with serving(_PausingProxy, store=urlsplit(store).netloc, gate=gate) as url:
        print(urlsplit(url).port, flush=True)
        for _ in sys.stdin:
            gate.open()
    print(gate.num, flush=True)


if __name__ == "__main__":
    main()
