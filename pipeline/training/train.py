"""`sluice train`, read from top to bottom: what is wrong with the recipe, what the call asks of a run that has
begun, what it is evaluated on, the steps, the certificate of a replay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lineage.storage.folder import Folder
from pipeline.inspect.first_tokenizer import compare_file
from pipeline.phases.progress import ProgressReporter
from pipeline.training.evaluation.of_run import prepare_evaluations
from pipeline.training.workers import check_workers
from trainer.evidence.commitment.commit import commit_ended
from trainer.options import TrainRecipe
from trainer.processes.result import TrainingResult
from trainer.recovery.call import prepare_replay
from trainer.recovery.options import ReplayOptions
from trainer.run.preflight import check_recipe, check_run, finished

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedCall:
    """What a call of a training run came to. `result`: how its steps ended, None where it asked for a replay and
    there was nothing to replay; `purges`: what it was to forget; `certificate`: where the certificate of that lies,
    None where none is due."""

    result: TrainingResult | None
    purges: tuple[str, ...]
    certificate: str | None


def train_recipe(
    recipe: TrainRecipe,
    replay: ReplayOptions,
    say: Say,
    *,
    file: str | None = None,
    shows_progress: bool = True,
) -> TrainedCall:
    """Train until the recipe's steps are done or a stop is requested, on Ray or, with `ray.address = "none"`, without;
    the same call continues from the newest checkpoint. `file`: where the recipe was read. `say` takes a line that the
    user should read; with `shows_progress` the steps are shown on stderr.

    Errors as of `check_recipe`, `prepare_replay` and `train_on_ray`; ResourceError and RayStartError as of
    `ray_session`, CertificateError where what was replayed cannot be certified."""
    for line in check_recipe(recipe, compare_file, replay.from_step):
        say(line)
    asked = prepare_replay(recipe, replay, file)
    for line in asked.lines:
        say(line)
    result = None
    if asked.trains:
        train = _train_here if recipe.ray.in_process else _train_on_ray
        result = finished(recipe)
        if result is None:
            prepare_evaluations(recipe, ProgressReporter(quiet=not shows_progress), say)
            result = train(recipe, say, shows_progress=shows_progress)
    ended = asked.is_done if result is None else result.finished
    if ended and recipe.train.commit:
        say(commit_ended(Folder(recipe.train.output)))
    certificate = _certified(recipe, asked.purges) if asked.purges and ended else None
    return TrainedCall(result=result, purges=asked.purges, certificate=certificate)


def prepare_run(recipe: TrainRecipe, say: Say) -> None:
    """What torchrun's processes cannot do themselves: the evaluations of `[[train.eval]]` as tokens in the run's
    output, and the scan of its data for them. Errors as of `check_run` and `prepare_evaluations`."""
    for line in check_run(recipe, compare_file):
        say(line)
    prepare_evaluations(recipe, ProgressReporter(), say)
    if not recipe.train.eval:
        say("there is no [[train.eval]]: nothing is to be prepared")


def _train_here(recipe: TrainRecipe, say: Say, *, shows_progress: bool) -> TrainingResult:
    """In this process, or with those that a run which recovers in place starts."""
    say("Training without Ray; torch is imported, which takes seconds …")
    from trainer.in_place.supervise import train_on_this_machine
    from trainer.processes.runtime import stopped_by_signals

    stop = threading.Event()
    with stopped_by_signals(stop.set):
        return train_on_this_machine(recipe, stop.is_set, shows_progress=shows_progress)


def _train_on_ray(recipe: TrainRecipe, say: Say, *, shows_progress: bool) -> TrainingResult:
    from pipeline.cluster.session import ray_session, what_starts

    begin = what_starts(recipe.ray.address)
    say(f"{begin[0].upper()}{begin[1:]}; then the workers start …")

    # With Ray and torch, which a wrong recipe need not wait for.
    from trainer.launch import train_on_ray
    from trainer.processes.placement import local_cpus
    from trainer.run.preflight import check_training

    check_training(recipe)
    with ray_session(recipe.ray.address, recipe.ray.num_cpus, training_cpus=local_cpus(recipe.train)):
        return train_on_ray(recipe, check_workers, shows_progress=shows_progress)


def _certified(recipe: TrainRecipe, purges: Sequence[str]) -> str:
    """Write the certificate of a replay that has ended, and its page; gives where it lies."""
    from pipeline.report.training.certificate import publish_page
    from trainer.checkpoint.digest import weights_digest
    from trainer.evidence.certificate import certify_replay

    output = Folder(recipe.train.output)
    name, row = certify_replay(output, purges, weights_digest)
    publish_page(output, name, row)
    return output.at(name)
