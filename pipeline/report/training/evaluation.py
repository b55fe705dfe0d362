"""Evaluations of a model as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.report.render import escaping

if TYPE_CHECKING:
    from trainer.evaluation.result import EvaluationResult


def render_evaluations(read: str, results: Sequence[EvaluationResult]) -> str:
    """The page of these results, by evaluation and step, of the model or the run at `read`. What stands in it is
    escaped."""
    names = dict.fromkeys(result.name for result in results)
    by_name = {name: [result for result in results if result.name == name] for name in names}
    template = escaping("pipeline.report", ".").get_template("training/evaluation.html")
    return template.render(read=read, by_name=by_name)
