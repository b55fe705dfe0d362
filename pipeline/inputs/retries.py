"""How often a request to a web server is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a request is tried again without any byte gained, and the pause before that:
    `backoff_seconds` doubled each time, at most `longest_seconds`, or what the server's Retry-After says.

    `connects` is how often connecting is tried again. It is low while a run is planned: nothing has answered
    yet, and a wrong name or port, or a server that is down, is an error after 7 s (after a minute where
    packets are dropped). Reading a planned input waits longer: the server has answered before (`READING`, 127
    s where it refuses)."""

    attempts: int = 8
    connects: int = 4
    backoff_seconds: float = 0.5
    longest_seconds: float = 60.0

    def pause(self, attempt: int) -> float:
        """Seconds to wait before attempt number `attempt` (the first one that follows a failure is 1)."""
        return min(self.backoff_seconds * 2.0 ** (attempt - 1), self.longest_seconds)


READING: Final = Retries(connects=8)
