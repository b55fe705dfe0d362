"""Tracing with URL normalisation and training orders, which lineage does not import. Light: no torch, no
Ray."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.storage.places import name_in
from lineage.store.rows import DocumentRow
from lineage.trace.exposure import Exposure, TrainingRun
from lineage.trace.tracer import Functions, MoreRuns, Tracer

if TYPE_CHECKING:
    from trainer.recovery.price import ReplayPrice

UNREADABLE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What reading a run's output raises: storage OSError, JSON that is not what training wrote any of the
others."""


def make_tracer(out: str, version: int | None = None, runs: Sequence[str] = ()) -> Tracer:
    """A tracer with URL normalisation and training orders, and the runs whose facts lie in these training
    outputs."""
    more = MoreRuns()
    if runs:
        from trainer.provenance.reached import read_facts

        more = read_facts(runs, out)
    return _tracer(out, version, more)


def _tracer(out: str, version: int | None, more: MoreRuns) -> Tracer:
    from trainer.provenance.exposure import find_readings, locate_sequences

    functions = Functions(find=find_readings, locate=locate_sequences, why_repeated=_why_repeated)
    return Tracer(Folder(out), functions, version=version, more=more)


def _why_repeated(out: Folder, row: DocumentRow, cluster_size: int) -> str | None:
    # It imports Arrow's tables, which few answers need.
    from pipeline.inspect.trace.why_repeated import why_repeated

    try:
        return why_repeated(out, row, cluster_size)
    except UNREADABLE as error:  # a history is told without it
        return f"why is not known: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneReadings:
    """Readings of an attempt that are not applied. `undone_by`: the attempt that went on from before them (None:
    their steps were skipped), and `how` in words."""

    attempt: int
    num_exposures: int
    first_step: int
    last_step: int
    undone_by: int | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedRun:
    """What a run read of some documents. First and last step and `num_exposures` are of the readings that count in
    its weights. `last_checkpoint_before`: steps done at the checkpoint to go back to, None where none is kept, and
    where it is unknown: `last_checkpoint_unknown` then says why. So do `replay_unknown` of a `replay` that is None,
    and `recipe_unknown` of a `replay_call` (a shell line) that names no recipe."""

    run: str
    output: str
    first_step: int | None
    last_step: int | None
    num_exposures: int
    last_checkpoint_before: int | None = None
    last_checkpoint_unknown: str | None = None
    replay: ReplayPrice | None = None
    replay_unknown: str | None = None
    replay_call: str | None = None
    recipe_unknown: str | None = None
    undone: tuple[UndoneReadings, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAccount:
    """What training runs read of some documents: `exposures`, one for each run that read any. `unread`: by
    run, why it is not known what it read since its last checkpoint: its output cannot be read."""

    exposures: tuple[ExposedRun, ...]
    unread: Mapping[str, str]


def training_account(out: str, doc_ids: Sequence[bytes], purge_id: str | None = None) -> TrainingAccount:
    """Each run that read any of these placed documents: the checkpoint to go back to, the price of a replay from
    there (`trainer/recovery/price.py`), and the readings that no longer count. `purge_id` names the purge that
    took them, so that it is not listed among those that wait. Steps since a run's last checkpoint, which the store
    lacks, are counted if the run's output can be read; if not, `unread` says why."""
    more, unread = _facts_of(out, make_tracer(out).runs())
    tracer = _tracer(out, None, more)
    read: dict[str, list[Exposure]] = {}
    for history in tracer.histories(doc_ids):
        for exposure in history.exposures:
            read.setdefault(exposure.run, []).append(exposure)
    runs = {run.run: run for run in tracer.runs()}
    exposures = (_account(out, runs[name], seen, purge_id) for name, seen in sorted(read.items()))
    return TrainingAccount(exposures=tuple(exposures), unread=unread)


def _account(out: str, run: TrainingRun, seen: Sequence[Exposure], purge_id: str | None) -> ExposedRun:
    """What a run read, which is not nothing."""
    applied = [exposure.step for exposure in seen if exposure.applied]
    read = ExposedRun(
        run=run.run,
        output=run.output,
        first_step=min(applied, default=None),
        last_step=max(applied, default=None),
        num_exposures=len(applied),
        undone=undone_readings(run, seen),
    )
    return _with_replay(out, run, read, purge_id) if applied else read


def undone_readings(run: TrainingRun, seen: Iterable[Exposure]) -> tuple[UndoneReadings, ...]:
    """The readings that are not applied, by attempt and by what undid them, in order: the attempt that went
    on from before the step (None: the step was skipped), and in words."""
    begun = {
        number: min(segment.first_step for segment in run.segments if segment.attempt == number)
        for number in {segment.attempt for segment in run.segments}
    }
    groups: dict[tuple[int, int | None], list[int]] = {}
    for exposure in seen:
        if not exposure.applied:
            later = sorted(number for number in begun if number > exposure.attempt)
            undoing = (number for number in later if begun[number] <= exposure.step)
            key = exposure.attempt, next(undoing, None)
            groups.setdefault(key, []).append(exposure.step)
    return tuple(
        UndoneReadings(
            attempt=attempt,
            num_exposures=len(steps),
            first_step=min(steps),
            last_step=max(steps),
            undone_by=by,
            how=_how_undone(run, attempt, steps, by, begun),
        )
        for (attempt, by), steps in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    )


def _how_undone(
    run: TrainingRun, attempt: int, steps: Sequence[int], by: int | None, begun: Mapping[int, int]
) -> str:
    from trainer.attempts import attempts
    from trainer.recovery.rollbacks import rollbacks

    if by is None:
        skipped = {
            step
            for segment in run.segments
            if segment.attempt == attempt
            for step in json.loads(segment.skipped_steps or "[]")
        }
        return "in steps that it skipped" if skipped >= set(steps) else "the run went on without them"
    place = f"checkpoint {begun[by]}" if begun[by] else "the first weights"
    try:
        output = Folder(run.output)
        number = next((each.rollback for each in attempts(output) if each.number == by), None)
        back = next((each for each in rollbacks(output) if each.number == number), None)
    except UNREADABLE:
        back = None  # what undid them stands in the store; why the run went back is in its output alone
    if back is None:
        return f"undone: attempt {by} went on from {place}"
    return f"undone by the replay from {place}" if back.purges else f"undone by going back to {place}"


def _facts_of(out: str, runs: Sequence[TrainingRun]) -> tuple[MoreRuns, dict[str, str]]:
    """What the outputs of these runs say about `out`, and by run why one cannot be read."""
    from trainer.provenance.reached import read_facts

    found: list[MoreRuns] = []
    unread: dict[str, str] = {}
    for run in runs:
        try:
            _check_holds(run)
            found.append(read_facts([run.output], out))
        except UNREADABLE as error:
            unread[run.run] = _unreadable(run.output, error)
    more = MoreRuns(
        runs=[run for facts in found for run in facts.runs],
        segments=[segment for facts in found for segment in facts.segments],
        placed=frozenset().union(*(facts.placed for facts in found)),
    )
    return more, unread


def known_checkpoints(run: TrainingRun) -> tuple[list[int], str | None]:
    """The steps done at each checkpoint of a run that is there, or none and why that is unknown."""
    try:
        return _kept_checkpoints(run), None
    except UNREADABLE as error:
        return [], _unreadable(run.output, error)


def _unreadable(output: str, error: Exception) -> str:
    """That the output of a run cannot be read, and why."""
    reason = (
        str(error) if isinstance(error, (OSError, ValueError)) else f"not as training writes it: {error!r}"
    )
    return f"{output} cannot be read ({reason})"


def _with_replay(out: str, run: TrainingRun, read: ExposedRun, purge_id: str | None) -> ExposedRun:
    """With the newest checkpoint before the readings, what it costs to leave the documents out again and by which
    call, or why that is unknown."""
    from trainer.recovery.price import price_of
    from trainer.recovery.readings import find_purges

    first_step = read.first_step or 0
    kept, unknown = known_checkpoints(run)
    before = max((done for done in kept if done <= first_step), default=None)
    read = replace(read, last_checkpoint_before=before, last_checkpoint_unknown=unknown)
    try:
        kept = _kept_checkpoints(run)
        waiting = [
            replace(purged, purges=tuple(purge for purge in purged.purges if purge.purge_id != purge_id))
            for purged in find_purges([out], ["all"])
        ]
        price = price_of(run, kept, first_step, waiting[0] if waiting else None)
    except RecipeError as error:  # of the run's output, or of a purge that has begun and did not end
        return replace(read, replay_unknown=str(error))
    except UNREADABLE as error:
        return replace(read, replay_unknown=_unreadable(run.output, error))
    recipe, recipe_unknown = _recorded_call(run.output)
    # Without a checkpoint that is early enough, the run begins again only where it is told to.
    call = f"sluice train {shlex.quote(recipe)} --forget all{'' if price.from_step else ' --restart'}"
    return replace(read, replay=price, replay_call=call, recipe_unknown=recipe_unknown)


def _recorded_call(output: str) -> tuple[str, str | None]:
    """The recipe of a run as a call names it, or RECIPE and why it is not known."""
    from trainer.attempts import attempts
    from trainer.provenance.setup import read_recipe, recipe_place

    folder = Folder(output)
    try:
        begun = attempts(folder)
        recorded = read_recipe(folder, begun[-1].number) if begun else None
    except UNREADABLE as error:
        return "RECIPE", f"the run's recipe cannot be read: {error}"
    if recorded is None:
        return "RECIPE", "the run's recipe is not recorded"
    place = recipe_place(folder, begun[-1].number)
    if folder.is_remote:
        return "RECIPE", f"{place} is the run's recipe: make the call with a copy of it"
    return place, None


def _check_holds(run: TrainingRun) -> None:
    """RecipeError where another run lies at the place that was recorded of this one."""
    from trainer.provenance.facts import owner_of

    if (found := owner_of(Folder(run.output))) not in (None, run.run):
        raise RecipeError(f"it holds the run {found!r}, and not {run.run!r}, which was moved or deleted")


def _kept_checkpoints(run: TrainingRun) -> list[int]:
    """The steps done at each checkpoint that is there; one of `UNREADABLE` where that cannot be known."""
    from trainer.huggingface.model_card import checkpoints_of, read_card

    _check_holds(run)
    output = Folder(run.output)
    # A run that has fed a step has a model.json, and a folder of checkpoints apart from its output has a file
    # that names the run. Without them the files are gone, or lie on another host.
    checkpoints = Folder(read_card(output).checkpoints)
    if name_in(output, checkpoints.url) is None and not checkpoints.names():
        raise FileNotFoundError(f"nothing lies in its folder of checkpoints, {checkpoints.url}")
    return [checkpoint.step for checkpoint in checkpoints_of(output)]
