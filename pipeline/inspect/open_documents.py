"""Documents that the ledger leaves open, judged from the texts that their run kept (`run.keep_text`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

import pyarrow.compute as pc

from lineage.index.checksums import DamagedFileError
from lineage.index.parsed_texts import ParsedPart, read_parsed_texts
from lineage.storage.folder import Folder
from pipeline.recipe.tables import PipelineRecipe, tables_of
from pipeline.results.rows import opened
from pipeline.units.parsed_texts import parsed_document
from stages.chain import build_chain
from stages.document import Document

MOST: Final = 5_000
"""Texts that a question judges at most: some ten seconds of one processor."""
_TOGETHER: Final = 256

Key = tuple[str, bytes]
"""(source, doc_id): a record that two sources have read is a document of each."""


def keeps_texts(out: Folder) -> bool:
    """Whether the output has the texts of its documents after parse."""
    texts = read_parsed_texts(out)
    return texts is not None and texts.kept and texts.removed is None


def survivors(out: Folder, recipe: PipelineRecipe, wanted: Collection[Key]) -> set[Key] | None:
    """Those of `wanted` that pass every step behind parse under `recipe`, by their texts after parse.

    None where that cannot be told here: the run kept no texts, or a model of the chain works on actors of its own.
    DamagedFileError where a text is not there although nothing purged it."""
    if not keeps_texts(out):
        return None
    texts = read_parsed_texts(out)
    assert texts is not None
    tables = tables_of(recipe)
    chains = {source.name: build_chain(source.steps, tables) for source in recipe.source}
    if any(chain.models for chain in chains.values()):
        return None
    by_source: dict[str, set[bytes]] = defaultdict(set)
    for source, doc_id in wanted:
        by_source[source].add(doc_id)
    passed: set[Key] = set()
    seen: set[Key] = set()
    for part in texts.parts:
        chain = chains[part.source]
        behind_parse = chain.stages.index("parse") + 1
        for documents in _documents(out, part, by_source[part.source]):
            seen |= {(part.source, document.doc_id) for document in documents}
            for outcome in chain.run_from(behind_parse, documents, {}):
                if isinstance(outcome, Document):
                    passed.add((part.source, outcome.doc_id))
    if missing := set(wanted) - seen:
        source, doc_id = min(missing)
        raise DamagedFileError(
            f"{out.url} has no parsed text of {doc_id.hex()} of source {source!r}: run sluice verify"
        )
    return passed


def _documents(out: Folder, part: ParsedPart, wanted: set[bytes]) -> Iterator[list[Document]]:
    """The wanted documents of a part as parse gave them, a few hundred at a time; only row groups that hold one are
    read whole."""
    if not wanted:
        return
    with opened(out, part.file, part.hash) as file:
        for group in range(file.num_row_groups):
            ids = file.read_row_group(group, columns=["doc_id"])["doc_id"].to_pylist()
            places = [place for place, doc_id in enumerate(ids) if doc_id in wanted]
            if not places:
                continue
            rows = file.read_row_group(group).take(places)
            rows = rows.filter(pc.is_valid(rows["text"]))
            for first in range(0, rows.num_rows, _TOGETHER):
                yield [parsed_document(part.source, row) for row in rows.slice(first, _TOGETHER).to_pylist()]
