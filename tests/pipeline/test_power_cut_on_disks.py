"""A machine that loses its power, on real file systems: what their blocks hold at each rename, and when a command has
returned, is mounted again, and the same call ends it."""

from __future__ import annotations
