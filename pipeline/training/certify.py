"""The certificate of a run's newest checkpoint, its check, and two runs compared: what `sluice certify` does, and the
library. The digest of weights, which needs torch, is imported last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.index.output_index import check_outside
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from trainer.evidence import check
from trainer.evidence.certified import CertifiedCheckpoint, open_certified
from trainer.evidence.check import Line
from trainer.evidence.compare import CheckpointComparison
from trainer.evidence.rows import CertificateRow
from trainer.provenance.facts import require_run


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCertificate:
    """A certificate: its row, the run it certifies, and the path of its page if one was written."""

    row: CertificateRow
    certified: CertifiedCheckpoint
    page: str | None


def make_certificate(
    output: Folder, purges: Sequence[str] = (), outs: Sequence[str] = (), to: str | None = None
) -> MadeCertificate:
    """The certificate of a run's newest checkpoint for these purges (none named: all) of the outputs that it read, or
    of `outs`; with `to` it is written to that file, and its page beside it. RecipeError where the call is wrong;
    others as of `trainer.evidence.certificate.make_certificate`."""
    if to is not None:
        if not to.endswith(".json"):
            raise RecipeError(f"--to {to!r}: expected a name that ends in .json")
        check_outside("--to", to)
    require_run(output)
    from trainer.checkpoint.digest import weights_digest
    from trainer.evidence import certificate

    certified = open_certified(output, purges or ["all"], outs)
    made = certificate.make_certificate(certified, weights_digest)
    if to is None:
        return MadeCertificate(row=made, certified=certified, page=None)
    from pipeline.report.training.certificate import publish_page

    folder, name = split(to)
    row = certificate.publish_certificate(folder, name, made)
    return MadeCertificate(row=row, certified=certified, page=folder.at(publish_page(folder, name, row)))


def check_certificate(file: str, output: Folder, outs: Sequence[str] = ()) -> list[Line]:
    """What a certificate says of a run's output, found again, a line each; `outs`: where the outputs that the run
    read lie now. RecipeError where the file cannot be read or the output is no run's, CertificateError where it is
    no certificate."""
    require_run(output)
    folder, name = split(file)
    try:
        data = folder.read(name)
    except OSError as error:
        raise RecipeError(f"--check {file} cannot be read: {error}") from error
    from trainer.checkpoint.digest import weights_digest

    return check.check_certificate(data, file, output, outs, digest=weights_digest)


def compare_runs(ours: Folder, theirs: Folder) -> CheckpointComparison:
    """As of `trainer.evidence.compare`."""
    from trainer.checkpoint.digest import weights_digest
    from trainer.evidence import compare

    return compare.compare_runs(ours, theirs, weights_digest)
