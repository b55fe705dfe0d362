"""From the recipe to the sources' steps: what they need, and the stages that documents meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lineage.purge.purge_filter import read_purged_sets
from lineage.purge.purged_sets import PurgedSets
from lineage.recipe import RecipeError
from lineage.store.column_names import INSIDE, LABEL
from lineage.store.delta import StoreError
from pipeline.models.encoder import check_installed, load_encoder
from pipeline.recipe.checks import check_steps_of
from pipeline.recipe.parts import check_part
from pipeline.recipe.tables import PipelineRecipe, effective_dedup, tables_of
from stages.chain import build_chain
from stages.steps.catalogue import CORPUS_STAGES, StepTables
from stages.steps.language import known_labels
from stages.steps.models.fasttext_model import load_model


def step_tables(recipe: PipelineRecipe, *, prepared: bool = True) -> StepTables:
    """What the steps need of the recipe; RecipeError where a step cannot be built or, if they are to be
    `prepared`, one of their files not be read."""
    tables = replace(tables_of(recipe), load_encoder=load_encoder, purged=_purged_sets(recipe.purges.honour))
    check_steps_of(recipe)
    check_installed(recipe.classifier)
    for source in recipe.source:
        chain = build_chain(source.steps, tables)
        if prepared:
            chain.prepare()
        _ = chain.models  # one that has no text to look at is refused now
    _check_parts(recipe, prepared=prepared)
    return tables


def _check_parts(recipe: PipelineRecipe, *, prepared: bool) -> None:
    """RecipeError where a class, or, if models are loaded, a language, that sources are parted by cannot name
    a part."""
    models = {LABEL + table.name: table.model for table in recipe.classifier if table.is_argmax}
    for table in recipe.bucket:
        for label in sorted(load_model(models[table.columns[0]]).labels) if table.is_of_labels else ():
            check_part(label, f"bucket.by of {table.name!r}: the class")
    has_model = any("language" in source.steps for source in recipe.source)
    if prepared and has_model and recipe.language.keep == "all":
        for language in sorted(known_labels(recipe.language)):
            check_part(language, 'language.keep = "all": the language')


def _purged_sets(outs: Sequence[str]) -> PurgedSets | None:
    """What earlier outputs purged, as the steps look for it; None where the recipe names none."""
    if not outs:
        return None
    try:
        return read_purged_sets(outs)
    except StoreError as error:
        raise RecipeError(f"purges.honour: {error}") from error


def stages_of(recipe: PipelineRecipe, tables: StepTables) -> dict[str, tuple[str, ...]]:
    """The stages that each source's documents meet, in order: those of its chain, then those that compare."""
    table = effective_dedup(recipe)
    switched_on = {
        "identity": True,
        "dedup.url": table.url,
        "dedup.exact": table.exact,
        "dedup.near": table.near,
    }
    last = tuple(stage for stage in CORPUS_STAGES if switched_on[stage])
    last += (INSIDE,) if table.inside.is_on else ()
    return {source.name: (*build_chain(source.steps, tables).stages, *last) for source in recipe.source}
