"""The environment variables that Ray reads as it is imported and as it starts."""

from __future__ import annotations

import os
from typing import Final

# Ray's notices belong in its log folder, not in a user's terminal. It would start its workers at niceness 15,
# and they are what the user waits for. With the jemalloc that it brings for its own servers they spend a
# sixth less on parsing, whose trees are thousands of small pieces.
# A local Ray's first driver waits for its first workers, and for ever where one of them took longer to start
# than this (60 s, ray-project/ray#40131): a busy machine may need minutes.
RAY_ENVIRONMENT: Final = {
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_LD_PRELOAD_ON_WORKERS": "1",
}


def set_ray_environment() -> None:
    """Set each of the variables that the user has not set. Called before anything imports ray."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
