"""A file system of its own on a file of blocks, whose power can be cut: what a copy of the blocks holds at a
moment is what the disk of a machine would hold that stopped then. Needs root, and a kernel with loop
devices."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MAKERS: Final = {
    "ext4": (64 << 20, ("mkfs.ext4", "-q", "-F")),
    "xfs": (300 << 20, ("mkfs.xfs", "-q", "-f")),
}
"""By file system: the least size that it takes, with room for a small output, and what makes it."""
_OPTIONS: Final = {"ext4": "loop,noauto_da_alloc", "xfs": "loop"}
"""ext4 brings a file that replaces another to the disk by itself, unless it is told not to: nobody may lean
on that."""

_UNMOUNTS: Final = 100


def why_not(kind: str) -> str | None:
    """Why there can be no such disk here; None if there can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if shutil.which(MAKERS[kind][1][0]) is None:
        return f"no {MAKERS[kind][1][0]}"
    if kind not in Path("/proc/filesystems").read_text().split() or not Path("/dev/loop-control").exists():
        return f"this kernel has no {kind} on loop devices"
    return None


def make_disk(kind: str, image: Path) -> None:
    """An empty file system on the file `image`."""
    size, maker = MAKERS[kind]
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run([*maker, str(image)], check=True)


@contextmanager
def mounted(kind: str, image: Path, at: Path) -> Iterator[None]:
    """The file system of `image` stands at `at` in the block; what its journal holds is brought in first."""
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", _OPTIONS[kind], str(image), str(at)], check=True)
    try:
        yield
    finally:
        _unmount(at)


def _unmount(at: Path) -> None:
    """A process that a command started may end a moment after it."""
    for _ in range(_UNMOUNTS):
        if subprocess.run(["umount", str(at)], check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.1)
    subprocess.run(["umount", str(at)], check=True)


def copy_blocks(image: Path, to: Path) -> None:
    """What the disk holds now: not what a process wrote and the kernel still keeps in memory."""
    subprocess.run(["cp", "--sparse=always", str(image), str(to)], check=True)


@contextmanager
def pausing(name: Path, take: Callable[[int], None]) -> Iterator[None]:
    """`take(number)` is called at each pause of processes that have $DISK_PAUSE = `name`; they go on when it
    returns."""
    at, go = Path(f"{name}.at"), Path(f"{name}.go")
    for fifo in (at, go):
        os.mkfifo(fifo)
    has_ended = threading.Event()

    def follow() -> None:
        number = 0
        while True:
            with open(at, "rb", buffering=0) as paused:
                paused.read(1)
            if has_ended.is_set():
                return
            take(number)
            number += 1
            _let_go(go, has_ended)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        last = os.open(at, os.O_RDWR)  # which waits for no reader
        os.write(last, b"x")
        thread.join()
        os.close(last)
        for fifo in (at, go):
            fifo.unlink()


def _let_go(go: Path, has_ended: threading.Event) -> None:
    """Let the process that reads this FIFO, or is about to, go on; nothing to do where it has died."""
    while not has_ended.is_set():
        try:
            os.close(os.open(go, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            time.sleep(0.001)
        else:
            return
