"""What a purge does to an export: the units whose inputs it rewrote are written again, by the same rules;
what never finished is removed."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace

from lineage.exports.manifest import is_of_units, read_manifest
from lineage.exports.records import REMOVED, now, original_of
from lineage.index.output_index import Index
from lineage.purge.erase import erase_old_versions, remove_all_leftovers
from lineage.storage import google_azure
from lineage.storage.folder import Folder, StorageError
from lineage.storage.lock import can_be_held, hold
from lineage.store.rows import ExportRow
from pipeline.export.formats.registry import INDEX_NAMES
from pipeline.export.process import (
    CLAIM,
    CorpusExport,
    clear_work,
    finished_row,
    in_process,
    same_corpus,
    write_export,
)
from pipeline.export.request import ExportRequest
from pipeline.export.units import sources_of


def clean_export(out: Folder, index: Index, row: ExportRow) -> ExportRow:
    """Bring the export of a row to what `index` says; the row to record. Units that a purge left alone are
    kept.

    The caller holds the OUT. StorageError where the folder is gone or holds something else, or where its
    store keeps what is deleted; HeldError while an export writes to it."""
    to = Folder(row.place)
    if (original := original_of(out, row.name, row.place)) is not None:
        raise StorageError(
            f"{to.url} is an export of {original.url}, of which {out.url} is a copy: purge it there, and give it"
            f" up here with --forget-export {row.name}"
        )
    if not to.is_remote and not os.path.isdir(to.url):
        raise StorageError(f"{to.url} is not there")
    # The purge holds the OUT, and with it every export of it in a store whose folders cannot be held.
    with google_azure.clear_errors(to), hold(to, "sluice purge") if can_be_held(to) else nullcontext():
        remove_all_leftovers(to)
        manifest = read_manifest(to)
        if manifest is not None:
            if (manifest.name, manifest.format) != (row.name, row.format) or not same_corpus(
                manifest, out, index
            ):
                raise StorageError(f"{to.url} holds another export, {manifest.name!r}")
            # By the manifest's own options, with which its files were written.
            request = ExportRequest.from_json(manifest.options)
            asked = CorpusExport(out=out, to=to, name=row.name, request=request, links=False)
            # A purge touches few units, so they are written in this process.
            left = finished_row(asked, write_export(asked, index, in_process))
        elif to.exists(CLAIM):
            left = _remove_unfinished(to, index, row)
        else:
            raise StorageError(f"{to.url} holds no export any more")
        erase_old_versions(to, ("",))
        google_azure.erase(to)
        return left


def _remove_unfinished(to: Folder, index: Index, row: ExportRow) -> ExportRow:
    sources = sources_of(index)
    for name in to.names():
        is_index = name.rpartition("/")[2] in INDEX_NAMES
        if (is_index or is_of_units(name, sources)) and not name.startswith("work/"):
            to.remove(name)
    clear_work(to)
    return replace(row, state=REMOVED, version=index.version, at=now())
