"""Where this checkout lies: processes that tests start find the packages and `tests.support` by it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
