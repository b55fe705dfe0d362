"""`sluice explain`: a file's document, or one of a finished output read again, through the steps of a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from lineage.index.output_index import check_finished
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.trace.document_history import DocumentHistory
from pipeline.inspect.explain.explanation import Explanation, explain, with_whole_ledger
from pipeline.inspect.explain.given_document import NamedFile, document_of
from pipeline.inspect.explain.refetch import find_one, refetch
from pipeline.inspect.trace.tracing import make_tracer
from pipeline.phases.steps import step_tables
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import PipelineRecipe, SourceTable
from stages.chain import build_chain
from stages.document import Document


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
    is read again, from `warc` where its file lies there now.

    RecipeError unless one of `doc_id` and `url` is given; UnknownError and RefetchError as of `find_one` and
    `refetch`."""
    if (doc_id is None) == (url is None):
        raise RecipeError("with OUT, expected --doc ID or --url URL, and one of them")
    check_finished(out)
    history = find_one(make_tracer(out.url), doc_id=doc_id, url=url)
    recipe = recipe_of(out, overrides)
    found = refetch(out, recipe, history, warc)
    chosen = found.source if source is None else _source(recipe, source)
    return _explained(found.document, recipe, chosen), history


def _source(recipe: PipelineRecipe, name: str | None) -> SourceTable:
    sources = {source.name: source for source in recipe.source}
    name = name or recipe.source[0].name
    if name not in sources:
        raise RecipeError(f"--source {name!r}: the recipe has {', '.join(map(repr, sources))}")
    return sources[name]


def _explained(document: Document, recipe: PipelineRecipe, source: SourceTable) -> Explanation:
    return explain(document, build_chain(source.steps, with_whole_ledger(step_tables(recipe))))
