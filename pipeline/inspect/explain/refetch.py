"""A document of a finished output, read again from its crawl file: rejected texts are kept nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import pyarrow.compute as pc

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, is_remote
from lineage.store.delta import read_table
from lineage.store.rows import DocumentRow
from lineage.trace.document_history import DocumentHistory
from lineage.trace.tracer import Tracer, UnknownError
from pipeline.inputs.files import open_place
from pipeline.inputs.retries import READING
from pipeline.recipe.tables import PipelineRecipe, SourceTable
from stages.document import Document
from stages.reading.options import ReadOptions
from stages.reading.reader import heads_at, read_one


class RefetchError(ValueError):
    """A record cannot be read again: its file is gone or another one now, or the document was purged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefetchedDocument:
    """A document as it was before the first step, and what the output's lineage has of it. `heads`: that of
    its record and the HTTP head in it, as they stand in the file; empty for rows."""

    document: Document
    heads: tuple[bytes, bytes]
    history: DocumentHistory
    source: SourceTable


def find_one(tracer: Tracer, *, doc_id: bytes | None = None, url: str | None = None) -> DocumentHistory:
    """The document of an id, or of a URL: of several captures the one that was kept, else the last.

    UnknownError where there is none, and for a URL the nearest ones that there are."""
    if doc_id is not None:
        return tracer.by_id(doc_id)
    assert url is not None
    found = tracer.by_url(url)
    return max(found, key=lambda h: (h.row.status == "kept", h.row.captured_at or "", h.doc_id))


def refetch(
    out: Folder, recipe: PipelineRecipe, history: DocumentHistory, place: str | None = None
) -> RefetchedDocument:
    """The document's record, read from where the run read it, or from `place`, where its file lies now.

    RefetchError where it cannot be read, where another record lies there now, and for a purged document: what
    was taken out of the output is not shown as a part of it."""
    row = history.row
    if history.purged is not None:
        raise RefetchError(
            f"document {row.doc_id.hex()} was purged (purge {history.purged.purge_id}), so its text is not"
            " shown; what the crawl file itself holds: sluice explain RECIPE --warc FILE --offset N"
        )
    if row.warc_file is None or row.warc_offset is None:
        raise UnknownError(f"document {row.doc_id.hex()}: the output does not say where it was read")
    sources = {source.name: source for source in recipe.source}
    if row.source not in sources:
        raise RecipeError(
            f"the recipe has no source {row.source!r}, which document {row.doc_id.hex()} came from"
        )
    source = sources[row.source]
    options = ReadOptions(
        source=source.name,
        file=row.warc_file,
        format=source.format,
        fields=source.row_fields,
        language=source.language,
        mime=source.mime,
        namespaces=source.namespaces,
        max_document_bytes=recipe.limits.max_document_bytes,
        max_window_bytes=recipe.limits.max_window_bytes,
    )
    places = [place] if place is not None else _places_of(out, row)
    if not places:
        raise RefetchError(
            f"no input of source {row.source!r} is called {row.warc_file!r}: name it with --warc FILE"
        )
    for candidate in places:
        found = _read(candidate, row, options)
        if found is not None and found[0].doc_id == row.doc_id:
            return RefetchedDocument(document=found[0], heads=found[1], history=history, source=source)
    raise RefetchError(
        f"byte {row.warc_offset:,} of {places[0]} does not hold document {row.doc_id.hex()}: the file is not"
        " the one that the run read; --warc FILE names a copy that is"
    )


def _places_of(out: Folder, row: DocumentRow) -> Sequence[str]:
    """The inputs that may have the row's relative name, the likeliest first: names of one source differ, but
    one may end as another does."""
    assert row.warc_file is not None
    inputs = read_table(out, "inputs")
    files = inputs.filter(pc.equal(inputs["source"], row.source))["file"].to_pylist()
    return sorted(
        (file for file in files if _may_be_called(file, row.warc_file)), key=lambda file: (len(file), file)
    )


def _may_be_called(file: str, name: str) -> bool:
    path = urlsplit(file).path if is_remote(file) else file
    return path == name or path.endswith("/" + name)


def _read(place: str, row: DocumentRow, options: ReadOptions) -> tuple[Document, tuple[bytes, bytes]] | None:
    """The document at the row's offset of a file, and its heads; None where none begins there. RefetchError
    if the file cannot be opened."""
    assert row.warc_offset is not None
    try:
        with open_place(place, place, READING) as stream:
            document = read_one(stream, row.warc_offset, options, row.doc_id)
            stream.seek(0)
            return document, heads_at(stream, row.warc_offset, options)
    except FileNotFoundError as error:
        raise RefetchError(
            f"there is no file {place} any more, from which the run read document {row.doc_id.hex()}: --warc"
            " FILE says where it lies now"
        ) from error
    except ValueError:
        return None
    except OSError as error:
        raise RefetchError(
            f"{place}, from which the run read document {row.doc_id.hex()}, cannot be read ({error}); --warc"
            " FILE names a copy that can"
        ) from error
