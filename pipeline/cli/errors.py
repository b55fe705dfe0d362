"""The error with which a command ends that could do its work and found that something does not hold."""

from __future__ import annotations


class FailedError(Exception):
    """A check or run failed, or what was asked for is not there: exit code 1 with this message."""
