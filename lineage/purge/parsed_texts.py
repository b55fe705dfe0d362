"""Taking documents out of the texts that a run kept after parse, or all of these texts at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lineage.index.parsed_texts import FOLDER, TEXTS_FILE, publish_texts, read_parsed_texts
from lineage.purge.rewrite import rewrite_parsed_texts
from lineage.storage.folder import Folder


def clean_parsed_texts(out: Folder, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Take the planned rows of `documents` out of the parsed texts, rejected ones too; then no other
    generation is left. Doing it again is harmless. False if texts.json names the same files as before."""
    texts = read_parsed_texts(out)
    if texts is None or not texts.kept:
        return False
    planned = [(row["source"], row["warc_file"], row["doc_id"]) for row in rows]
    part_of = texts.parts_of({(source, file) for source, file, _ in planned})
    wanted: dict[str, set[bytes]] = {}
    for source, file, doc_id in planned:
        if (part := part_of.get((source, file))) is not None:
            wanted.setdefault(part.file, set()).add(doc_id)
    parts = [
        rewrite_parsed_texts(out, part, wanted[part.file]) if part.file in wanted else part
        for part in texts.parts
    ]
    is_changed = tuple(parts) != texts.parts
    if is_changed:
        publish_texts(out, parts, removed=texts.removed)
    _remove_all_but(out, {name for part in parts for name in (part.file, part.facts)})
    return is_changed


def remove_parsed_texts(out: Folder, purge_id: str) -> None:
    """Remove all parsed texts and their facts; texts.json stays and names the purge. Doing it again is
    harmless."""
    publish_texts(out, (), removed=purge_id)
    _remove_all_but(out, ())


def _remove_all_but(out: Folder, left: Collection[str]) -> None:
    for name in out.names(FOLDER):
        if name != TEXTS_FILE and name not in left:
            out.remove(name)
