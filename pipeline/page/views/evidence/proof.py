"""Proofs by form: what is asked as the subject of a proof, and the proof with what a page shows of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, get_args

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.trace.exposure import TrainingRun
from lineage.trace.tracer import UnknownError
from trainer.evidence.commitment.keys import KINDS, Kind, domain_subject, text_subjects, url_subject
from trainer.evidence.commitment.prove import LeafValues, proof_bytes, prove

_TEXT: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProof:
    """A proof of a run's newest checkpoint, `data` as its file; of one that is present how often it was read, and the
    first and last step."""

    run: str
    kind: Kind
    subject: str
    checkpoint: str
    root: str
    present: bool
    readings: int
    first_step: int | None
    last_step: int | None
    has_init: bool
    data: bytes


def named_run(runs: Sequence[TrainingRun], name: str) -> TrainingRun:
    """UnknownError where none of the runs that read the corpus has the name."""
    run = next((run for run in runs if run.run == name), None)
    if run is None:
        raise UnknownError(f"run {name!r}: no training run of that name has read this corpus")
    return run


def subjects_of(kind: str, value: str) -> tuple[Kind, list[str]]:
    """What is looked up for a value that a person gives. RecipeError where there is none, or it is no domain."""
    known = _kind(kind)
    if not value.strip():
        raise RecipeError("expected a URL, a registered domain or a text")
    if known == "text":
        # A form sends line ends as CR LF, whatever the text had.
        return known, text_subjects(value.replace("\r\n", "\n"))
    if known == "url":
        return known, [url_subject(value.strip())]
    try:
        return known, [domain_subject(value.strip())]
    except RecipeError as error:
        raise RecipeError(str(error).removeprefix("--")) from error


def linked_subject(kind: str, subject: str) -> tuple[Kind, list[str]]:
    """The same of a link, which has the digest of a text in place of the text."""
    if kind != "text":
        return subjects_of(kind, subject)
    if not _TEXT.fullmatch(subject):
        raise RecipeError(f"subject {subject!r}: expected the BLAKE3 of a text as 32 hex digits")
    return "text", [subject]


def make_proof(run: TrainingRun, kind: Kind, subjects: Sequence[str]) -> ShownProof:
    """The proof for the first of the subjects that the run's newest checkpoint has read, or of the last one's absence.
    RecipeError where that checkpoint is not committed."""
    proof = prove(Folder(run.output), kind, subjects)
    return ShownProof(
        run=run.run,
        kind=kind,
        subject=proof.subject,
        checkpoint=proof.commitment.checkpoint,
        root=proof.commitment.root,
        present=proof.leaf is not None,
        has_init=proof.commitment.init_from is not None,
        data=proof_bytes(proof),
        **(proof.leaf or LeafValues())._asdict(),
    )


def _kind(kind: str) -> Kind:
    if kind not in KINDS:
        raise RecipeError(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    return next(each for each in get_args(Kind) if each == kind)
