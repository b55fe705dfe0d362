"""Sluice as a library: run a recipe, apply its steps to texts, read an output, train on it. docs/api.md shows
each.

    import sluice

    sluice.run("recipes/crawl.toml", ["run.output=/data/out"])
    output = sluice.open_output("/data/out")

Names are imported when they are first used: `import sluice` alone loads neither Ray nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lineage.index.checksums import DamagedFileError
    from lineage.index.output_index import NotFinishedError
    from lineage.recipe import RecipeError
    from pipeline.recipe.tables import PipelineRecipe
    from sluice.output import ChangedOutputError, Output, PurgedError, open_output
    from sluice.running import load_recipe, run
    from sluice.sequences import Sequences
    from sluice.steps import Judged, Steps
    from stages.document import Document, Edit, Finding, Outcome, Rejection
    from stages.tokens.tokenizer import load_tokenizer

__all__ = [
    "ChangedOutputError",
    "DamagedFileError",
    "Document",
    "Edit",
    "Finding",
    "Judged",
    "NotFinishedError",
    "Outcome",
    "Output",
    "PipelineRecipe",
    "PurgedError",
    "RecipeError",
    "Rejection",
    "Sequences",
    "Steps",
    "load_recipe",
    "load_tokenizer",
    "open_output",
    "run",
]

_PLACES = {
    "ChangedOutputError": "sluice.output",
    "DamagedFileError": "lineage.index.checksums",
    "Document": "stages.document",
    "Edit": "stages.document",
    "Finding": "stages.document",
    "Judged": "sluice.steps",
    "NotFinishedError": "lineage.index.output_index",
    "Outcome": "stages.document",
    "Output": "sluice.output",
    "PipelineRecipe": "pipeline.recipe.tables",
    "PurgedError": "sluice.output",
    "RecipeError": "lineage.recipe",
    "Rejection": "stages.document",
    "Sequences": "sluice.sequences",
    "Steps": "sluice.steps",
    "load_recipe": "sluice.running",
    "load_tokenizer": "stages.tokens.tokenizer",
    "open_output": "sluice.output",
    "run": "sluice.running",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sluice")
    if name not in _PLACES:
        raise AttributeError(f"module 'sluice' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
