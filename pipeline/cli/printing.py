"""How a command prints its result: as one JSON document, or for people."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

from pipeline.terminal import harmless_json, speaks_unicode


def print_json(value: Any) -> None:
    """One JSON document on stdout, exact also where stdout takes ASCII alone."""
    in_ascii = not speaks_unicode(sys.stdout.encoding)
    sys.stdout.write(harmless_json(json.dumps(value, ensure_ascii=in_ascii, allow_nan=False)) + "\n")


def console() -> Console:
    """Where people read results."""
    return Console(highlight=False)
