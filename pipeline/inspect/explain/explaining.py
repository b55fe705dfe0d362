"""`sluice explain`: a file's document, or one of a finished output read again, through the steps of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lineage.ids import text_hash
from lineage.index.output_index import check_finished
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.column_names import INSIDE
from lineage.store.lookup import Lookup
from lineage.store.rows import CutRow
from lineage.trace.document_history import DocumentHistory
from pipeline.inspect.explain.explanation import Explanation, StepExplanation, explain, with_whole_ledger
from pipeline.inspect.explain.given_document import NamedFile, document_of
from pipeline.inspect.explain.refetch import find_one, refetch
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.phases.steps import step_tables
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe, SourceTable
from stages.chain import build_chain
from stages.dedup.inside.cuts import left_of
from stages.document import Document, Edit, Finding


def explain_given(recipe: PipelineRecipe, named: NamedFile, source: str | None = None) -> Explanation:
    """What the steps of a source (the first) make of the document that a call names. Errors as of
    `document_of`."""
    chosen = _source(recipe, source)
    return _explained(document_of(named, chosen, recipe.limits), recipe, chosen)


def explain_recorded(
    out: Folder,
    *,
    doc_id: bytes | None = None,
    url: str | None = None,
    overrides: Sequence[str] = (),
    source: str | None = None,
    warc: str | None = None,
) -> tuple[Explanation, DocumentHistory]:
    """What the output's own recipe, with `overrides`, makes of one of its documents, and its history; its record
    is read again, from `warc` where its file lies there now. Cuts depend on all other documents: where the steps leave
    the text that they left then, those that the output has are its last step.

    RecipeError unless one of `doc_id` and `url` is given; UnknownError and RefetchError as of `find_one` and
    `refetch`."""
    if (doc_id is None) == (url is None):
        raise RecipeError("with OUT, expected --doc ID or --url URL, and one of them")
    check_finished(out)
    tracer = make_tracer(out.url)
    history = find_one(tracer, doc_id=doc_id, url=url)
    recipe = recipe_of(out, overrides)
    found = refetch(out, recipe, history, warc)
    chosen = found.source if source is None else _source(recipe, source)
    explanation = _explained(found.document, recipe, chosen)
    return _with_recorded_cuts(explanation, tracer.lookup, history), history


def _with_recorded_cuts(explanation: Explanation, lookup: Lookup, history: DocumentHistory) -> Explanation:
    row, text = history.row, explanation.document.text
    found = lookup.edits([row.doc_id])
    cuts = [(edit.start, edit) for edit in found if isinstance(edit, CutRow) and edit.start is not None]
    is_rejected = row.stage == INSIDE
    if explanation.deciding is not None or not (cuts or is_rejected):
        return explanation
    taken, num_gone = list[tuple[int, int]](), 0
    for place, cut in cuts:  # `place` is one of what is left
        begin, end = place + num_gone, place + num_gone + cut.count
        taken.append((taken.pop()[0], end) if taken and taken[-1][1] == begin else (begin, end))
        num_gone += cut.count
    left = left_of(text, taken)
    if text_hash(left) != row.clean_hash:
        return explanation
    deciding = Finding(
        stage=INSIDE, rule=row.rule or "", value=row.value, threshold=row.threshold, rejected=True
    )
    step = StepExplanation(
        stage=INSIDE,
        verdict="rejected" if is_rejected else "changed",
        deciding=deciding if is_rejected else None,
        findings=(deciding,) if is_rejected else (),
        edits=tuple(Edit(stage=INSIDE, kind=cut.kind, count=cut.count) for _, cut in cuts),
        text_before=text,
        text_after=left,
        fault=None,
    )
    document = replace(explanation.document, text=left)
    return replace(explanation, document=document, steps=(*explanation.steps, step))


def _source(recipe: PipelineRecipe, name: str | None) -> SourceTable:
    sources = {source.name: source for source in recipe.source}
    name = name or recipe.source[0].name
    if name not in sources:
        raise RecipeError(f"--source {name!r}: the recipe has {', '.join(map(repr, sources))}")
    return sources[name]


def _explained(document: Document, recipe: PipelineRecipe, source: SourceTable) -> Explanation:
    return explain(document, build_chain(source.steps, with_whole_ledger(step_tables(recipe))))
