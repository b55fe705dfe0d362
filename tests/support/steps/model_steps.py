"""Classes of a user's own, and functions of batches, for tests: found by name, by workers too."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stages.document import Document, Edit, Finding, Outcome, Rejection

EVENTS = "SLUICE_TEST_EVENTS"
"""The variable that names the folder in which steps leave what they did, where a test wants to know."""


class Shout:
    """Puts texts in capitals and turns short ones down; made once for a worker."""

    def __init__(self, least: str | None = None) -> None:
        self._least = 0 if least is None else int(Path(least).read_text())

    def __call__(self, documents: list[Document]) -> list[Outcome]:
        return [self._one(document) for document in documents]

    def _one(self, document: Document) -> Outcome:
        if len(document.text) < self._least:
            finding = Finding(
                stage="", rule="too_quiet", value=float(len(document.text)), threshold=float(self._least)
            )
            return Rejection(document=document, finding=finding)
        return document.with_text(document.text.upper(), Edit(stage="shout", kind="capitals", count=1))


class DropsSome:
    """Leaves out what it does not want, which a step must not."""

    def __call__(self, documents: list[Document]) -> list[Outcome]:
        return [document for document in documents if "pills" not in document.text]


class Raises:
    """Raises on documents that hold a word."""

    def __call__(self, documents: list[Document]) -> list[Outcome]:
        for document in documents:
            if "pills" in document.text:
                raise KeyError("no pills")
        return list(documents)


class GivesTexts:
    """Gives texts where documents are expected."""

    def __call__(self, documents: list[Document]) -> list[str]:
        return [document.text for document in documents]


class CannotBeMade:
    """Fails before it sees a document."""

    def __init__(self) -> None:
        raise OSError("the weights are elsewhere")

    def __call__(self, documents: list[Document]) -> list[Outcome]:
        return list(documents)


def adds_a_score(document: Document) -> Document:
    """A function that gives a score of its own, which a step must not."""
    return replace(document, scores=(*document.scores, ("mine", 1.0)))


def reverse_batch(documents: Sequence[Document]) -> list[Outcome]:
    """A function of a batch: each text with how many came together."""
    return [replace(document, text=f"{len(documents)} {document.text}") for document in documents]


def _events() -> Path:
    return Path(os.environ[EVENTS])


class SaysSo:
    """Leaves a file when it has worked on a batch."""

    def __call__(self, documents: list[Document]) -> list[Outcome]:
        (_events() / f"asked-{documents[0].record_id}").touch()
        return list(documents)


def wait_for_the_model(document: Document) -> Document:
    """On the document whose id is `last`, waits until a model has worked on a batch of the same file."""
    if document.record_id == "last":
        until = time.monotonic() + 120
        while not any(_events().glob("asked-*")):
            if time.monotonic() > until:
                raise TimeoutError("reading ends, and no model has worked yet")
            time.sleep(0.05)
    return document


class DiesTenTimes:
    """Kills its process on ten batches, each the first time that it comes."""

    def __call__(self, documents: list[Document]) -> list[Outcome]:
        scar = _events() / f"died-{documents[0].doc_id.hex()}"
        if not scar.exists() and sum(1 for _ in _events().glob("died-*")) < 10:
            scar.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return list(documents)


class DiesAlways:
    """Kills its process."""

    def __call__(self, documents: list[Document]) -> list[Outcome]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []
