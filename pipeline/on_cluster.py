"""A command inside a cluster job: takes the object store's settings out of what was shipped, connects to the cluster
that the job runs on, whatever a recipe or an output's own recipe says, and is `sluice` from there on.

  python -m pipeline.on_cluster run recipe.toml

Keys travel in the job's package and not as variables of its runtime environment, which the dashboard, the job's
description and Ray's logs show.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

SETTINGS: Final = "sluice-settings.json"
"""In the job's working folder: environment variables, name to value."""


def take_settings() -> None:
    """Set the shipped variables in this process. Ray calls it in each worker process of the job too, so that training
    workers on nodes that were started without keys reach the object store."""
    try:
        settings = json.loads(Path(SETTINGS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    os.environ.update(settings)


def main() -> int:
    """The command's exit code."""
    from pipeline.cli.main import main as sluice
    from pipeline.cluster.engine import cluster
    from pipeline.recipe import RayTable

    take_settings()
    with cluster(RayTable(address="auto")):
        return sluice()


if __name__ == "__main__":
    sys.exit(main())
