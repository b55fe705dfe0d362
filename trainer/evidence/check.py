"""The check of a certificate: everything in it is found again, and each line says whether it holds.

A certificate can lie, and so can what it was made from. What it says is compared with the run's own records,
the facts in the run's output, the stores of the outputs that it read and the bytes of the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.checkpoint.store import COMPLETE, CheckpointError, DigestWeights, check_files
from trainer.evidence.certificate import records, weights_row
from trainer.evidence.certificate_file import parse_certificate
from trainer.evidence.certified import CertifiedCheckpoint, open_certified
from trainer.evidence.commitment.commit import found_again
from trainer.evidence.commitment.readings import open_read
from trainer.evidence.contradictions import contradictions
from trainer.evidence.rows import CertificateRow, Gap, PublishedCertificate, Records
from trainer.provenance.facts import require_run
from trainer.recovery.readings import readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that a certificate says: whether it holds, and why not."""

    what: str
    holds: bool
    why: str = ""


def check_certificate(
    data: bytes, where: str, output: Folder, outs: Sequence[str] = (), *, digest: DigestWeights
) -> list[Line]:
    """A line for each thing that the certificate `data` says of the run at `output`; `outs`: where the
    outputs that it read lie now, if elsewhere. CertificateError for what is no certificate, RecipeError for
    what is no run's output."""
    row, is_whole = parse_certificate(data, where)
    lines = [
        Line(
            what="checksum",
            holds=is_whole,
            why="" if is_whole else "its bytes were changed since it was written",
        )
    ]
    run = require_run(output)
    if run != row["run"]:
        why = f"it is of the run {row['run']!r}, and {output.url} holds {run!r}"
        return [*lines, Line(what="run", holds=False, why=why)]
    lines.append(Line(what=f"run {run}", holds=True))
    try:
        purges = [purge["purge_id"] for purge in row["purges"]]
        certified = open_certified(output, purges, outs, row["checkpoint"]["name"])
    except RecipeError as error:
        return [*lines, Line(what="checkpoint and purges", holds=False, why=str(error))]
    lines.append(Line(what=f"read {certified.read}", holds=True))
    return [*lines, *_lines(row, certified, digest)]


def _lines(row: CertificateRow, certified: CertifiedCheckpoint, digest: DigestWeights) -> Iterator[Line]:
    for purged in certified.purged:
        if (back := purged.restored_purge()) is not None:
            yield Line(what=f"purge {back}", holds=False, why=f"{purged.out.url} holds its documents again")
    problems = contradictions(certified)
    for problem in problems:
        yield Line(what="chain", holds=False, why=problem)
    now = records(certified)
    for name in sorted(row.keys() - PublishedCertificate.__required_keys__):
        yield Line(what=name, holds=False, why="a certificate has no such field")
    yield _compared(
        "documents_digest_method", row.get("documents_digest_method"), now["documents_digest_method"]
    )
    yield from _purges(row, now)
    yield from _chain(row, now)
    yield _compared("weights that the run began with (init_from)", row["init_from"], now["init_from"])
    left = list(row["not_covered"])
    for gap in now["not_covered"]:
        # Two outputs can have gaps in equal words: each counts once.
        if gap in left:
            left.remove(gap)
        else:
            why = f"found and not named: {gap['why']}"
            yield Line(what=f"not covered: {gap['kind']} {gap['what']}", holds=False, why=why)
    for gap in left:
        since = _ended(gap, certified)
        why = f"named and not found: {gap['why']}" if since is None else since
        yield Line(what=f"not covered: {gap['kind']} {gap['what']}", holds=since is not None, why=why)
    yield _compared("what makes it inexact", row["inexact"], now["inexact"])
    yield _commitment(row, certified)
    yield from _weights(row, now, certified, digest)


def _commitment(row: CertificateRow, certified: CertifiedCheckpoint) -> Line:
    """Whether the root is that of what lineage says now that the checkpoint has read."""
    try:
        found = found_again(open_read(certified.output, certified.outs, certified.checkpoint))
    except RecipeError as error:
        return Line(what="commitment", holds=False, why=str(error))
    return _compared("commitment", row["commitment"], {"root": found.root, "num_leaves": found.num_leaves})


def _ended(gap: Gap, certified: CertifiedCheckpoint) -> str | None:
    """How what a certificate does not cover came to its end since; None where that is not seen."""
    if gap["kind"] in ("set aside", "damaged"):
        return None if certified.checkpoints.folder(gap["what"]).exists(COMPLETE) else "it is there no more"
    if gap["kind"] in ("ablation", "other run"):
        theirs = [
            exposure.applied
            for purged in certified.purged
            for run in purged.runs()
            if run.run == gap["what"]
            for _, exposure in readings(run, purged)
        ]
        return "its readings are undone since" if theirs and not any(theirs) else None
    return None


def _purges(row: CertificateRow, now: Records) -> Iterator[Line]:
    left = list(now["purges"])
    for purge in row["purges"]:
        name = f"purge {purge['purge_id']}"
        same = [each for each in left if each["purge_id"] == purge["purge_id"]]
        if not same:
            yield Line(what=name, holds=False, why="it is named more often than it is recorded")
            continue
        # An output may have been moved, and its copy has the same purges: then what is said of them decides.
        here = min(same, key=lambda each: (each["out"] != purge["out"], _said(each) != _said(purge)))
        left.remove(here)
        yield _compared(f"{name}: documents", _documents(purge), _documents(here))
        yield _compared(f"{name}: readings", _readings(purge), _readings(here))
        if here["applied"]:
            why = f"{here['applied']} readings are in the weights, first in step {here['first_step']}"
            yield Line(what=f"{name}: none is applied", holds=False, why=why)
    for purge in left:
        yield Line(
            what=f"purge {purge['purge_id']}", holds=False, why=f"of {purge['out']}: found and not named"
        )


_READINGS = ("readings", "first_step", "applied")


def _said(purge: Mapping[str, object]) -> dict[str, object]:
    """All that is said of a purge but where its output lay."""
    return {name: value for name, value in purge.items() if name != "out"}


def _documents(purge: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in _said(purge).items() if name not in _READINGS}


def _readings(purge: Mapping[str, object]) -> dict[str, object]:
    return {name: purge.get(name) for name in _READINGS}


def _chain(row: CertificateRow, now: Records) -> Iterator[Line]:
    there = {link["attempt"]: link for link in row["chain"]}
    found = {link["attempt"]: link for link in now["chain"]}
    for attempt in sorted(there.keys() | found.keys()):
        what = f"chain: attempt {attempt}"
        if attempt not in there:
            yield Line(what=what, holds=False, why="it is part of the chain and cut out of the certificate")
        elif attempt not in found:
            yield Line(
                what=what, holds=False, why="the run has no such attempt on the way to this checkpoint"
            )
        else:
            yield _compared(what, there[attempt], found[attempt])
    order = [link["attempt"] for link in row["chain"]]
    if there.keys() == found.keys() and order != list(found):
        yield Line(what="chain", holds=False, why=f"it names attempts {order}, found {list(found)}")


def _weights(
    row: CertificateRow, now: Records, certified: CertifiedCheckpoint, digest: DigestWeights
) -> Iterator[Line]:
    folder = certified.folder
    yield _compared("checkpoint", row["checkpoint"], now["checkpoint"])
    try:
        check_files(folder)
    except CheckpointError as error:
        yield Line(what="files of the checkpoint", holds=False, why=str(error))
        return
    yield Line(what="files of the checkpoint", holds=True)
    found = digest(folder)
    named = row["weights"].get("tensors", {})
    differing = [
        name
        for name in sorted(named.keys() | found.tensors.keys())
        if named.get(name) != found.tensors.get(name)
    ]
    if differing:
        why = f"{len(differing)} of {found.num_tensors} tensors are others, {differing[0]} first"
        yield Line(what="weights and moments", holds=False, why=why)
    else:
        yield _compared("weights and moments", row["weights"], weights_row(found))


def _compared(what: str, said: object, found: object) -> Line:
    """Whether two parts are equal; what is said and what is found of the fields that differ."""
    if said == found:
        return Line(what=what, holds=True)
    if isinstance(said, dict) and isinstance(found, dict):
        names = [name for name in sorted(said.keys() | found.keys()) if said.get(name) != found.get(name)]
        why = "; ".join(f"{name} is {said.get(name)!r}, found {found.get(name)!r}" for name in names)
        return Line(what=what, holds=False, why=why)
    return Line(what=what, holds=False, why=f"it says {said!r}, found {found!r}")
