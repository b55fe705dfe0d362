"""Python processes whose wall clock is hours off: a sitecustomize module shifts `time.time` and
`datetime.now`."""

from __future__ import annotations

import os
from pathlib import Path

_SITECUSTOMIZE = """
import datetime, os, time
_shift = float(os.environ["WRONG_CLOCK_SECONDS"])
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _shift
time.time_ns = lambda: _time_ns() + int(_shift * 1e9)

class _Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)

datetime.datetime = _Shifted
"""


def wrong_clock(folder: Path, hours: float) -> dict[str, str]:
    """The environment of a Python process whose wall clock is `hours` ahead; `folder` is written to. Clocks
    that only measure spans (`time.monotonic`) go on as they are, as on a node whose date is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "WRONG_CLOCK_SECONDS": str(hours * 3600)}
