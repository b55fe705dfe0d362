"""The object store's settings on their way into a job: a file in its package, readable by its owner only.

Keys do not travel as variables of the job's runtime environment, which the dashboard, the job's description
and Ray's logs show."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

SETTINGS: Final = "sluice-settings.json"
"""In the job's working folder: environment variables, name to value."""


def take_settings() -> None:
    """Set the shipped variables in this process. Ray calls it in each worker process of the job too, so that
    training workers on nodes that were started without keys reach the object store."""
    try:
        settings = json.loads(Path(SETTINGS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    os.environ.update(settings)
