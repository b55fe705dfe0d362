"""Commit to what a run has read, and prove that it has read a URL, a domain or a text, or has not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.storage.folder import Folder
from pipeline.training.proofs import make_proof
from sluice.messages import in_python
from trainer.evidence.commitment.commit import Commitment, commit_run
from trainer.evidence.commitment.prove import LeafValues, proof_bytes


@in_python
def commit(run_output: str, *, outs: Sequence[str] = (), workers: int = 1) -> Commitment:
    """Publish the root over all that a run's newest checkpoint has read, as `sluice commit` does; `outs` says where the
    outputs that the run read lie now, `workers` how many processes hash (a script that asks for several needs the
    guard `if __name__ == "__main__":`). The root does not depend on them.

    RecipeError where it is no run's output or has no checkpoint, DamagedFileError where lineage is damaged."""
    return commit_run(Folder(run_output), outs, workers=workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Whether the weights of a checkpoint have read `subject` (a URL's normal form, a registered domain, or the BLAKE3
    of a text as 32 hex digits): how often, in which first and last step (None where they have not). `data` is the
    proof against `root`, which deploy/verify_proof.py checks."""

    kind: str
    subject: str
    run: str
    checkpoint: str
    root: str
    present: bool
    readings: int
    first_step: int | None
    last_step: int | None
    data: bytes


@in_python
def prove(
    run_output: str,
    *,
    url: str | None = None,
    domain: str | None = None,
    text: str | None = None,
    step: int | None = None,
    to: str | None = None,
) -> Proof:
    """The proof that a run has read one of a URL, a registered domain and the text of a file (`text`), or that it has
    not, as `sluice prove` gives it: of the newest checkpoint, or that of `step` steps. With `to`, a name that ends in
    .json, it is written there.

    RecipeError where the call is wrong, or the checkpoint is not committed (`commit`)."""
    given = [name for name in (url, domain, text) if name is not None]
    if len(given) != 1:
        raise ValueError(f"{len(given)} of url, domain and text are given: expected one")
    proof = make_proof(Folder(run_output), url=url, domain=domain, text=text, step=step, to=to)
    return Proof(
        kind=proof.kind,
        subject=proof.subject,
        run=proof.commitment.run,
        checkpoint=proof.commitment.checkpoint,
        root=proof.commitment.root,
        present=proof.leaf is not None,
        **(proof.leaf or LeafValues())._asdict(),
        data=proof_bytes(proof),
    )
