"""The certificate of a checkpoint: that nothing of what purges took is in its weights, and what that does not
cover.

  purges      which documents (a digest of their ids, no text), how often the run read them, how many readings count
  chain       the attempts from the first step to the checkpoint: parent, steps, contents, recipe, layout, versions
  weights     a digest of weights and moments that does not hang on the layout (`checkpoint/digest.py`)
  commitment  a root over all that the checkpoint has read, against which `sluice prove` shows what it has not
  not_covered what else may hold the documents, as far as anything that is recorded tells

Everything is found in the run's output and the stores of the outputs that it read. The last line is a
checksum of the bytes before it, against damage; against a certificate that lies there is `check.py`, which
finds everything again."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from typing import cast

from lineage.ids import SET_CONTEXT, content_hash, set_digest
from lineage.storage.folder import Folder
from trainer.checkpoint.store import (
    COMPLETE,
    Checkpoint,
    DigestWeights,
    WeightsDigest,
    check_files,
    read_position,
)
from trainer.evidence.certificate_file import FORMAT, CertificateError, as_bytes
from trainer.evidence.certified import CertifiedCheckpoint, open_certified
from trainer.evidence.chain import chain_of, inexact
from trainer.evidence.commitment.commit import commit_run
from trainer.evidence.contradictions import contradictions
from trainer.evidence.not_covered import not_covered
from trainer.evidence.origin import init_from
from trainer.evidence.rows import (
    CertificateRow,
    CommitmentRow,
    PublishedCertificate,
    PurgeReadings,
    Records,
    WeightsRow,
)
from trainer.recovery.readings import PurgedOutput, readings


def make_certificate(certified: CertifiedCheckpoint, digest: DigestWeights) -> CertificateRow:
    """What is found, without its date; `digest` reads the weights. CheckpointError where a file of the
    checkpoint is damaged, CertificateError where what is recorded of the run contradicts itself, or readings
    are applied."""
    folder = certified.folder
    if problems := contradictions(certified):
        raise CertificateError(f"{certified.output.url} cannot be certified: {problems[0]}")
    row = records(certified)
    for purge in row["purges"]:
        if purge["applied"]:
            raise CertificateError(
                f"{certified.checkpoint.name} cannot be certified: it read documents of purge"
                f" {purge['purge_id']} {purge['applied']} times, first in step {purge['first_step']}; sluice"
                f" train RECIPE --forget {purge['purge_id']} does the steps since again"
            )
    # The files first: a digest of damaged weights would be a true one of other weights.
    check_files(folder)
    weights = weights_row(digest(folder))
    committed = commit_run(certified.output, certified.outs, certified.checkpoint)
    commitment: CommitmentRow = {"root": committed.root, "num_leaves": committed.num_leaves}
    return {**row, "commitment": commitment, "weights": weights}


def weights_row(found: WeightsDigest) -> WeightsRow:
    """A digest of weights and moments as it stands in a certificate."""
    return {
        "digest": found.digest,
        "num_tensors": found.num_tensors,
        "num_elements": found.num_elements,
        "tensors": dict(found.tensors),
    }


def records(certified: CertifiedCheckpoint) -> Records:
    """The certificate but for the weights: what records say, as they are now."""
    folder = certified.folder
    position = read_position(folder)
    chain = chain_of(certified.output, certified.checkpoint)
    row: Records = {
        "format": FORMAT,
        "run": certified.run,
        "output": certified.output.url,
        "checkpoint": {
            "name": certified.checkpoint.name,
            "step": position.step,
            "attempt": position.attempt,
            "order_version": position.order_version,
            "plan_fingerprint": position.plan_fingerprint,
            "files_digest": content_hash(folder.read(COMPLETE)).hex(),
        },
        "documents_digest_method": f"BLAKE3 over the sorted 16-byte ids, key derived from {SET_CONTEXT!r}",
        "purges": list(_purges(certified)),
        "chain": chain,
        "init_from": init_from(certified),
        "not_covered": list(not_covered(certified)),
        "inexact": inexact(chain),
    }
    return cast(Records, json.loads(json.dumps(row)))  # as it is read again: lists and no tuples


def _purges(certified: CertifiedCheckpoint) -> Iterator[PurgeReadings]:
    for purged in certified.purged:
        for purge in purged.purges:
            one = PurgedOutput(out=purged.out, purges=(purge,))
            num, applied, first = 0, 0, None
            for run in certified.runs(one):
                if run.run == certified.run:
                    found = [exposure for _, exposure in readings(run, one)]
                    here = certified.as_certified(run)
                    applied += sum(exposure.applied for _, exposure in readings(here, one))
                    num += len(found)
                    first = min((exposure.step for exposure in found), default=first)
            yield {
                "out": purged.out.url,
                "purge_id": purge.purge_id,
                "at": purge.at,
                "num_documents": len(one.doc_ids),
                "documents_digest": set_digest(one.doc_ids),
                "content_fingerprint_after": purge.content_fingerprint_after,
                "readings": num,
                "first_step": first,
                "applied": applied,
            }


def certificate_name(checkpoint: Checkpoint) -> str:
    """Where a run's output keeps the certificate of a checkpoint that ended a replay."""
    return f"certificates/{checkpoint.name}.json"


def certify_replay(
    output: Folder, purges: Sequence[str], digest: DigestWeights
) -> tuple[str, PublishedCertificate]:
    """Write the certificate of a run's newest checkpoint into its output; gives its name there and what
    stands in it. Errors as of `open_certified` and `make_certificate`."""
    certified = open_certified(output, purges)
    name = certificate_name(certified.checkpoint)
    return name, publish_certificate(output, name, make_certificate(certified, digest))


def publish_certificate(to: Folder, name: str, row: CertificateRow) -> PublishedCertificate:
    """Write a certificate, with its date and its checksum; gives what stands in it."""
    at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    whole: PublishedCertificate = {"at": at, **row}
    to.publish(name, as_bytes(whole))
    return whole
