"""A prediction beside its run: kept for it in OUT, found when it starts, brought up to date while it reads.

work/prediction.json                           Prediction, as `sluice plan --keep` wrote it; then in run.json"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from lineage.ids import content_hash
from lineage.index.output_index import INDEX_FILE
from lineage.storage.folder import Folder
from lineage.store.work import PLAN
from pipeline.inputs.files import Input
from pipeline.plan import RunPlan, shaping_keys
from pipeline.recipe.tables import PipelineRecipe
from pipeline.results.estimates import PREDICTION_FILE, Prediction
from pipeline.results.unit_results import ReadResult

_NOT_READING: Final = ("start", "compare", "tokenize", "shard", "lineage", "publish")
_SHOWN_FROM: Final = 0.01
"""Processor hours: of a smaller run nothing is said."""


def digest_of(recipe: PipelineRecipe, inputs: Sequence[Sequence[Input]]) -> str:
    """What a prediction is of: the recipe, less what shapes no output, and the inputs by name and size."""
    plain = shaping_keys(recipe)
    plain["run"] = {name: value for name, value in plain["run"].items() if name not in ("name", "output")}
    plain["dedup"] = {name: value for name, value in plain["dedup"].items() if name != "against"}
    plain = {name: table if name == "source" else _without_folders(table) for name, table in plain.items()}
    named = sorted([found.source, found.name, found.size] for of_source in inputs for found in of_source)
    return content_hash(json.dumps([plain, named], sort_keys=True).encode()).hex()


def _without_folders(value: Any) -> Any:
    """A plain value with files by their own names: a submitted job has them elsewhere."""
    if isinstance(value, str):
        return value.rstrip("/").rpartition("/")[2]
    if isinstance(value, dict):
        return {name: _without_folders(each) for name, each in value.items()}
    return [_without_folders(each) for each in value] if isinstance(value, (list, tuple)) else value


def keep(recipe: PipelineRecipe, prediction: Prediction) -> bool:
    """Write a prediction to where its run finds it; False, and nothing is written, where OUT holds a run
    already."""
    out = Folder(recipe.run.output)
    if out.exists(INDEX_FILE) or out.exists(PLAN):
        return False
    out.publish(PREDICTION_FILE, json.dumps(prediction.to_json(), indent=1).encode())
    return True


def prediction_of(plan: RunPlan) -> Prediction | None:
    """What was predicted of this run; None where nothing was, or of other inputs or settings."""
    if not plan.out.exists(PREDICTION_FILE):
        return None
    found = Prediction.from_json(json.loads(plan.out.read(PREDICTION_FILE)))
    inputs = [unit.inputs for unit in plan.units]
    return found if found.of == digest_of(plan.recipe, inputs) else None


def priced_again(results: Sequence[ReadResult], num_bytes: int, prediction: Prediction | None) -> str:
    """How a line of progress goes on with what the run costs in all, by what was read so far of `num_bytes`, and
    what was predicted."""
    read, spent = (
        sum(unit.num_bytes for unit in results),
        sum(unit.seconds.get("all", 0.0) for unit in results),
    )
    hours = spent / 3600 * num_bytes / read if read else 0.0
    if prediction is None:
        return f", about {hours:,.2f} processor hours to read all" if hours >= _SHOWN_FROM else ""
    figures = prediction.estimates
    others = (figures.get(f"processor_hours.{name}") for name in _NOT_READING)
    hours += sum(found.value for found in others if found is not None)
    planned, money = figures["processor_hours"].value, figures["money"].value
    if max(hours, planned) < _SHOWN_FROM:
        return ""
    again = f", about {hours:,.2f} processor hours in all ({planned:,.2f} predicted)"
    return again + (f", money {money * hours / planned:,.2f}" if money and planned else "")
