"""Leaving no bytes behind: temporary files of writers that died, and in a versioned bucket every old
version."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from lineage.index.names import EXCERPTS_FILE, REPORT_FILE
from lineage.purge.plan import PurgeError
from lineage.storage import objects
from lineage.storage.folder import Folder, remove_local_tree
from lineage.storage.temporary import is_temporary

_TEXT_BEARING: Final = ("documents/", "texts/", "shards/", "dedup/", "work/", EXCERPTS_FILE, REPORT_FILE)
"""Whatever holds a document's text or tokens, now or while the run was under way."""

_PROBE: Final = "work/purge/probe"


def refuse_if_bytes_would_stay(out: Folder) -> None:
    """PurgeError if the bucket keeps what is deleted, or does not answer: then a purge must not begin.

    A probe decides it: an object is written, deleted, and its version deleted."""
    try:
        if not objects.keeps_old_versions(out):
            return
    except OSError as error:
        raise PurgeError(
            f"whether the bucket of {out.url} keeps old versions is unknown ({error}), so the purge does not"
            " begin: give this identity s3:GetBucketVersioning"
        ) from error
    out.publish(_PROBE, b"a purge tries whether versions can be deleted")
    out.remove(_PROBE)
    try:
        found = list(objects.versions(out, _PROBE))
        objects.delete_versions(out, found)
    except OSError as error:
        raise PurgeError(
            f"the bucket of {out.url} keeps old versions and they cannot be deleted ({error}): the purge"
            " would leave the texts there, so it does not begin. Give this identity s3:DeleteObjectVersion,"
            " or lift the object lock"
        ) from error
    if not any(version.name == _PROBE for version in found):
        raise PurgeError(
            f"the bucket of {out.url} keeps old versions and does not list them: the purge would leave the"
            " texts there, so it does not begin. Give this identity s3:ListBucketVersions"
        )


def erase_old_versions(out: Folder, text_bearing: Sequence[str] = _TEXT_BEARING) -> None:
    """Delete every version that is not the current one, and every part of an upload that never ended, of all
    that may hold text: names beginning with one of `text_bearing`. Nothing to do on disk or in a bucket that
    keeps no versions."""
    if not objects.is_s3(out.url):
        return
    for under in text_bearing:
        objects.abort_uploads(out, under)
    if not objects.keeps_old_versions(out):
        return
    for under in text_bearing:
        found = objects.versions(out, under)
        objects.delete_versions(out, [v for v in found if not v.is_latest or v.is_marker])


def remove_leftovers(out: Folder, also: Sequence[str] = ()) -> None:
    """Remove temporary files that writers of text left when they died, and those of other folders, `also`.
    The caller holds the OUT."""
    if out.is_remote:
        return
    _remove_temporaries(out.url, os.listdir(out.url))
    for name in (*_TEXT_BEARING, *also):
        if name.endswith("/"):
            remove_all_leftovers(out.folder(name.rstrip("/")))


def remove_all_leftovers(top: Folder) -> None:
    """Remove every temporary file at and below a local folder; nothing to do in an object store, which has
    none."""
    if top.is_remote:
        return
    for folder, folders, files in os.walk(top.url):
        _remove_temporaries(folder, [*folders, *files])
        folders[:] = [name for name in folders if not is_temporary(name)]


def _remove_temporaries(folder: str, names: Sequence[str]) -> None:
    for name in filter(is_temporary, names):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            remove_local_tree(path)
        else:
            os.unlink(path)
