"""Whether a run has the dates that its choice of copies hangs on."""

from __future__ import annotations

from collections.abc import Sequence

from lineage.recipe import RecipeError
from pipeline.recipe.tables import PipelineRecipe, effective_dedup
from pipeline.results.run_summary import first_odd_date
from pipeline.results.unit_results import ReadResult
from pipeline.terminal import counted
from stages.dedup.options import BY_DATE


def check_dates(recipe: PipelineRecipe, read_results: Sequence[ReadResult]) -> None:
    """RecipeError where dedup.keep names the first or last capture, and no document that is compared has a
    date: each choice would be one by id."""
    table = effective_dedup(recipe)
    num = sum(unit.num_survivors for unit in read_results)
    if table.keep not in BY_DATE or not (table.url or table.exact or table.near):
        return
    if not num or sum(unit.num_without_date for unit in read_results) < num:
        return
    odd = first_odd_date(read_results)
    holds = f"; captured_at or date hold {odd}, which is none" if odd else ""
    raise RecipeError(
        f'dedup.keep = "{table.keep}" needs dates, and none of the {counted(num, "document")} has one{holds}:'
        " name the field of the date as source.date_field (an ISO date, RFC 2822, 20260131120000 or a Unix"
        ' time), or give dedup.keep = "longest"',
        "dedup.keep",
    )
