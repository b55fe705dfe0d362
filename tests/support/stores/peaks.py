"""How full a cache folder ever is, looked at all the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Peak:
    """The most bytes seen."""

    def __init__(self) -> None:
        self.bytes = 0


@contextmanager
def peak_bytes(folder: Path) -> Iterator[Peak]:
    """Watches the blocks in `folder`, unfinished ones included, while the block runs."""
    peak, stop = Peak(), threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            peak.bytes = max(peak.bytes, _bytes_in(folder))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.glob("*") if folder.is_dir() else ():
        if path.suffix in (".block", ".part"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue  # evicted or renamed in this moment
    return total
