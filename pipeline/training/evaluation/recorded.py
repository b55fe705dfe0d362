"""The evaluations that a run made of itself while it trained, from its metrics.jsonl."""

from __future__ import annotations

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.attempts import attempts, line_of_attempts
from trainer.evaluation.result import EvaluationResult
from trainer.telemetry.metrics_file import each_line
from trainer.telemetry.step_report import StepReport

_LONGEST_RUN = 1 << 62


def recorded_evaluations(output: Folder) -> tuple[EvaluationResult, ...]:
    """The results of `[[train.eval]]` of the run at `output`, step by step, of the attempts that lead to the newest
    one. RecipeError where the folder is no run's, or the run made none."""
    begun = attempts(output)
    if not begun:
        raise RecipeError(
            f"{output.url} is not the output of a training run: --on FILE names what a folder is scored on"
        )
    ends = dict(line_of_attempts(begun, begun[-1].number, _LONGEST_RUN))
    found: dict[tuple[int, str], EvaluationResult] = {}
    for line in each_line(output):
        if b'"evaluations"' not in line:
            continue
        report = StepReport.from_json(line)
        if report.step < ends.get(report.attempt, 0):
            found |= {(report.step, result.name): result for result in report.evaluations}
    if not found:
        raise RecipeError(
            f"the run at {output.url} has not evaluated itself: --on FILE scores its newest checkpoint, and"
            " [[train.eval]] in a recipe does while it trains"
        )
    return tuple(found[key] for key in sorted(found))
