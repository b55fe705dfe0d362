"""A stand-in for a proxy run: says that it started, and waits until it is told to end with a code, or gets a
signal.

Its arguments are FOLDER and NAME (`trainer.mix.child`)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_IMPORTED_BY = os.getpid()


def main(arguments: Sequence[str]) -> int:
    """The code that FOLDER/NAME.go holds once it is there; 0 after SIGTERM."""
    folder, name = Path(arguments[0]), arguments[1]

    def end(number: int, frame: FrameType | None) -> None:
        publish(folder / f"{name}.stopped", signal.Signals(number).name)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    told = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "LOCAL_RANK", "AWS_SECRET_ACCESS_KEY")}
    processes = {"pid": os.getpid(), "parent": os.getppid(), "imported": _IMPORTED_BY}
    publish(folder / f"{name}.started", json.dumps(told | processes | {"said": sys.stdin.read()}))
    while not (folder / f"{name}.go").exists():
        time.sleep(0.02)
    print(f"{name} was told to go")
    return int((folder / f"{name}.go").read_text())


def publish(path: Path, text: str) -> None:
    """The file appears whole."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)
