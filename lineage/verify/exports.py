"""Verify, part 8: every recorded export is where it was written, whole, and of this version of the corpus.

Every file of an export was made from files of the OUT in a known generation, and its hash was taken as it was
written: an export of this version with the right hashes, and without files of an earlier state, holds no
purged text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from lineage.exports.manifest import MANIFEST, read_manifest, strays
from lineage.exports.records import BEGUN, is_live, read_exports
from lineage.index.checksums import hash_file
from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.rows import ExportRow
from lineage.verify.problems import Problem, guarded


def check_exports(out: Folder, index: Index, notes: list[Problem]) -> Iterator[Problem]:
    """What does not hold of the recorded exports. `notes` gains those that are under way, or were left so."""
    for row in read_exports(out):
        if is_live(row):
            yield from guarded("export.unreadable", f"export {row.name}", _check(out, index, row, notes))


def _check(out: Folder, index: Index, row: ExportRow, notes: list[Problem]) -> Iterator[Problem]:
    where, to = f"export {row.name}", Folder(row.place)
    if row.version != index.version:
        yield _stale(out, index, row, row.version)
        return
    if row.state == BEGUN:
        # Where a copy was forgotten, and is taken up again, its files may be older than the row.
        earlier = read_manifest(to)
        if earlier is not None and earlier.version != index.version:
            yield _stale(out, index, row, earlier.version)
        message = f"{row.place} was begun and is not finished: the same `sluice export` call continues it"
        notes.append(Problem("export.unfinished", where, message))
        return
    manifest = read_manifest(to)
    if manifest is None:
        yield Problem(
            "export.missing", where, f"{row.place} holds no {MANIFEST} any more. {_ways_out(out, row)}"
        )
        return
    if hash_file(to, MANIFEST) != row.manifest_hash:
        yield Problem(
            "export.changed", to.at(MANIFEST), f"is not the one that was recorded. {_ways_out(out, row)}"
        )
        return
    for name, digest in manifest.files().items():
        yield from guarded("export.file", to.at(name), _check_file(to, name, digest))
    for name in strays(to, manifest):
        message = (
            "the manifest does not name it: it may hold purged documents. The same `sluice"
            " export` call removes it"
        )
        yield Problem("export.extra", to.at(name), message)


def _stale(out: Folder, index: Index, row: ExportRow, version: int) -> Problem:
    return Problem(
        "export.stale",
        f"export {row.name}",
        f"{row.place} holds version {version} of the corpus, which has version {index.version}: it may hold"
        f" purged documents. {_ways_out(out, row)}",
    )


def _check_file(to: Folder, name: str, digest: str) -> Iterator[Problem]:
    found = hash_file(to, name)
    if found != digest:
        yield Problem("export.file", to.at(name), f"hash is {found}, expected {digest}")


def _ways_out(out: Folder, row: ExportRow) -> str:
    return (
        f"The same `sluice export` call brings it to what {out.url} holds now; if the copy is none of yours"
        f" any more: sluice purge {shlex.quote(out.url)} --forget-export {shlex.quote(row.name)} --reason …"
        " --by … --apply"
    )
