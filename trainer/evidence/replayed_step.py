"""A step that a run has done, and all that its replay needs: the checkpoint before it, the recipe, what was
recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.places import shown_place
from trainer.attempts import attempts, line_of_attempts
from trainer.checkpoint.store import Checkpoint, newest_with_files
from trainer.evidence.observed import ObserveRequest
from trainer.evidence.origin import origin_of
from trainer.huggingface.model_card import checkpoints_of, read_card
from trainer.options import TrainRecipe
from trainer.provenance.facts import FactLog, SegmentFact, require_run
from trainer.provenance.setup import Setup, layout_of, located_at, read_recipe, read_setup, versions
from trainer.recovery.same_recipe import changed_since
from trainer.telemetry.metrics_file import read_reports
from trainer.telemetry.step_report import StepReport

_USUAL_STEPS: Final = 16
"""Steps before it, of whose losses a source's usual one is the mean: few, since losses fall fast early in a
run, and a usual loss that is too high ranks short documents first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """A step of a run that is to be done again. `attempt` did it last; `recorded` are the reports of the
    steps from the checkpoint on, `before` those of the steps before it; `changed` says what is not as it was
    then: then a difference proves nothing."""

    output: Folder
    recipe: TrainRecipe
    setup: Setup
    attempt: int
    step: int
    checkpoint: Checkpoint | None
    recorded: Mapping[int, StepReport]
    before: Sequence[StepReport]
    changed: tuple[str, ...]

    @property
    def read(self) -> tuple[str, ...]:
        """The folders that a replay reads: the weights that it begins with, and the data."""
        table = self.recipe.train
        begins = table.init_from
        if self.checkpoint is not None:
            begins = Folder(table.checkpoint.path or self.output.at("checkpoints")).at(self.checkpoint.name)
        return tuple(shown_place(Folder(url)) for url in (begins, *(data.out for data in table.outs)) if url)

    @property
    def request(self) -> ObserveRequest:
        """What a replay is asked for."""
        return ObserveRequest(
            checkpoint=None if self.checkpoint is None else self.checkpoint.name,
            step=self.step,
            num_threads=self.setup.hardware.num_threads,
        )


def step_to_replay(output: Folder, step: int, *, most: int | None = None) -> ReplayedStep:
    """A step that a run has done. `most`: the steps that the checkpoint before it may have, None: any. RecipeError
    where it is no run's output, the step is not recorded, or how it was set up is not known."""
    require_run(output)
    reports = read_reports(output)
    done = {report.step: report for report in reports if report.skipped != "listed"}
    if step not in done:
        reached = max((report.step for report in reports), default=None)
        there = "no step is recorded" if reached is None else f"steps 0 to {reached} are recorded"
        listed = any(report.step == step for report in reports)
        why = "the run left it out (train.skip), so it was never done" if listed else there
        raise RecipeError(f"--step {step}: {why}, in metrics.jsonl of {output.url}")
    attempt = done[step].attempt
    known, setup = read_recipe(output, attempt), read_setup(output, attempt)
    if known is None or setup is None:
        raise RecipeError(
            f"the recipe or the setup of attempt {attempt} is no more in {output.at('attempts')}"
        )
    folder = Folder(read_card(output).checkpoints)
    known = located_at(known, output, folder)
    # Where the run went back, what it did since leads to another state, and what is undone led to this one.
    ends = dict(line_of_attempts(attempts(output), attempt, step + 1))
    led = {
        report.step: report
        for report in reports
        if report.skipped != "listed" and report.step < ends.get(report.attempt, 0)
    }
    leading = [entry for entry in checkpoints_of(output) if entry.step <= ends.get(entry.attempt, 0)]
    chosen = newest_with_files(folder, leading, step if most is None else most)
    first = 0 if chosen is None else chosen.step
    recorded = {number: report for number, report in led.items() if first <= number}
    return ReplayedStep(
        output=output,
        recipe=known,
        setup=setup,
        attempt=attempt,
        step=step,
        checkpoint=chosen,
        recorded=recorded,
        before=[led[number] for number in sorted(led) if step - _USUAL_STEPS <= number < step],
        changed=tuple(_changed(output, known, setup, recorded, from_first=chosen is None)),
    )


def _changed(
    output: Folder,
    recipe: TrainRecipe,
    setup: Setup,
    recorded: Mapping[int, StepReport],
    *,
    from_first: bool,
) -> Iterator[str]:
    """What is not as it was when these steps were done: contents, versions, layout, the weights to begin
    with."""
    now = {
        Folder(table.out).url: read_index(Folder(table.out)).content_fingerprint
        for table in recipe.train.outs
    }
    facts = [fact for _, fact in FactLog(output).facts() if isinstance(fact, SegmentFact)]
    for out, content in now.items():
        read = {
            fact.content_fingerprint
            for fact in facts
            if Folder(fact.out).url == out
            for number, report in recorded.items()
            if fact.attempt == report.attempt
            and fact.first_step <= number <= max(fact.last_step, fact.first_step)
        }
        if read - {content}:
            yield f"{out} has another content than these steps read, as after a purge"
    if from_first and setup.origin is not None and origin_of(setup.origin.url).digest != setup.origin.digest:
        yield f"{setup.origin.url} holds other weights than the run began with"
    now_of = versions()
    for name, was in setup.versions.items():
        if now_of.get(name) != was:
            yield f"{name} is {now_of.get(name)} and was {was}"
    if layout_of(recipe) != setup.layout:
        yield "the layout is another"
    attempt = max(report.attempt for report in recorded.values())
    for earlier in sorted({report.attempt for report in recorded.values()} - {attempt}):
        yield from _changed_since(output, earlier, attempt, setup)


def _changed_since(output: Folder, earlier: int, attempt: int, setup: Setup) -> Iterator[str]:
    """In what an earlier attempt, which did some of the steps, did them otherwise than this one does."""
    was, changes = read_setup(output, earlier), changed_since(output, earlier, attempt)
    if was is None or changes is None:
        yield f"attempt {earlier} did some of these steps, and how it was set up is no more recorded"
        return
    yield from (f"{change} in attempt {earlier}" for change in changes)
    for name in ("layout", "device", "hardware", "versions"):
        if getattr(was, name) != getattr(setup, name):
            yield f"the {name} of attempt {earlier} was another"
