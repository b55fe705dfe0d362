"""A command inside a cluster job: takes the object store's settings out of what was shipped, connects to the
cluster that the job runs on, whatever a recipe or an output's own recipe says, and is `sluice` from there on.

  python -m pipeline.on_cluster run recipe.toml
"""

from __future__ import annotations

import sys


def main() -> int:
    """The command's exit code."""
    from pipeline.cli.main import main as sluice
    from pipeline.cluster.session import ray_session
    from pipeline.jobs.settings import take_settings

    take_settings()
    with ray_session("auto"):
        return sluice()


if __name__ == "__main__":
    sys.exit(main())
