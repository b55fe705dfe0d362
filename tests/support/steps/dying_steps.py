"""Steps and units of work whose process dies, for tests: found by name, by workers too."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from pathlib import Path

from stages.document import Document


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def scar(source: str) -> Path:
    """The file that says that a process died of `source` already."""
    return Path(tempfile.gettempdir()) / f"sluice-test-died-of-{source}"


def die_once(document: Document) -> Document:
    """A step that kills its process on the first document of a source that it ever meets."""
    if not scar(document.source).exists():
        scar(document.source).touch()
        _die()
    return document


def die_always(document: Document) -> Document:
    """A step that kills its process on every document."""
    _die()
    return document


def unit(folder: str, deaths: int, isolation: bool) -> list[bool]:
    """A unit of work whose process dies on its first `deaths` tries; whether each try was isolated, in
    order."""
    tries = sorted(Path(folder).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    if len(tries) < deaths:
        Path(folder, f"{isolation}-{uuid.uuid4().hex}").touch()
        _die()
    return [*(path.name.startswith("True") for path in tries), isolation]
