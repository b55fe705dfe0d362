"""Run the training of a recipe, with or without Ray. Resumable: the same call continues from the newest
checkpoint.

  sluice train recipes/train.toml
  sluice train recipes/train.toml --set train.steps=200
  sluice train recipes/train.toml --from-step 100        go back to the checkpoint of 100 steps and continue
  sluice train recipes/train.toml --forget all            remove purged documents from the model

--forget goes back to the newest checkpoint before the run first read a document of these purges (or of all),
replays the steps on the purged shards in the same order, and writes a certificate (sluice certify). The
result is the model of a run that never read these documents. If the run read none of them, nothing is done.
If no checkpoint is early enough, --restart starts again from the first weights.

Newer checkpoints move to the folder set-aside beside the others until the run has repeated their steps
(sluice trace OUT --runs RUN_OUTPUT lists them); lineage marks the undone steps as not applied. After a kill
the same call continues, and so does one without these options: the run never goes back twice.

With [train.recovery] mode = "in_place" and spares = 1 or more, a lost process costs seconds: the survivors
keep their state, and a spare takes the lost place (docs/training.md).

Without Ray: --set ray.address=none trains with one worker in this process; a run that recovers in place
starts its own workers. For N workers: `torchrun --nproc-per-node N -m trainer recipes/train.toml`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json, add_recipe
from pipeline.cli.printing import print_json
from pipeline.cli.training.workers import check_workers
from pipeline.terminal import visible_lines
from trainer.recovery.options import add_replay, check_replay

if TYPE_CHECKING:
    from pipeline.phases.progress import ProgressReporter
    from trainer.options import TrainRecipe
    from trainer.run.result import TrainingResult


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "training data, model and training options")
    add_replay(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from trainer.telemetry.asked_stacks import stacks_to_stderr

    stacks_to_stderr()
    from lineage.recipe import load_recipe
    from pipeline.inspect.first_tokenizer import compare_file
    from pipeline.phases.progress import ProgressReporter
    from trainer.options import TrainRecipe
    from trainer.recovery.call import prepare_replay
    from trainer.run.preflight import check_recipe, finished

    reporter = ProgressReporter()
    recipe = load_recipe(options.recipe, TrainRecipe, options.overrides)
    reporter.say(f"{options.recipe}: training run {recipe.run.name!r}; checking its data and model")
    check_replay(options)
    for line in check_recipe(recipe, compare_file):
        reporter.say(line)
    replay = prepare_replay(recipe, options)
    for line in replay.lines:
        reporter.say(line)
    if not replay.trains:
        certificate = _certificate(recipe, replay.purges) if replay.is_done else None
        if options.json:
            print_json({"replayed": False, "purges": list(replay.purges), "certificate": certificate})
        elif certificate is not None:
            print(f"Certificate: {visible_lines(certificate)}")
        return 0
    result = finished(recipe) or (
        _trained_here(recipe, reporter) if recipe.ray.in_process else _trained(recipe, reporter)
    )
    certificate = _certificate(recipe, replay.purges) if replay.purges and result.finished else None
    if options.json:
        more = (
            {"replayed": True, "purges": list(replay.purges), "certificate": certificate}
            if replay.purges
            else {}
        )
        print_json(asdict(result) | more)
    elif result.finished:
        print(visible_lines(done_lines(recipe, result)))
        if certificate is not None:
            print(f"Certificate: {visible_lines(certificate)}")
    else:
        print(
            f"Stopped after step {result.step}; the same call continues from checkpoint {result.checkpoint}."
        )
    return 0


def _trained_here(recipe: TrainRecipe, reporter: ProgressReporter) -> TrainingResult:
    """Train without Ray: in this process, or with those that a run which recovers in place starts."""
    reporter.say("Training without Ray; torch is imported, which takes seconds …")
    from trainer.in_place.supervise import train_on_this_machine
    from trainer.processes.runtime import stopped_by_signals

    with stopped_by_signals() as stop_requested:
        return train_on_this_machine(recipe, stop_requested)


def _trained(recipe: TrainRecipe, reporter: ProgressReporter) -> TrainingResult:
    """Train on Ray."""
    from pipeline.cluster.session import ray_session, what_starts

    begin = what_starts(recipe.ray.address)
    reporter.say(f"{begin[0].upper()}{begin[1:]}; then the workers start …")

    # With Ray and torch, which a wrong recipe need not wait for.
    from trainer.launch import check_training, train_on_ray
    from trainer.processes.placement import local_cpus

    check_training(recipe)
    with ray_session(recipe.ray.address, recipe.ray.num_cpus, training_cpus=local_cpus(recipe.train)):
        return train_on_ray(recipe, check_workers)


def _certificate(recipe: TrainRecipe, purges: Sequence[str]) -> str:
    """Write the certificate of a replay that has ended, and its page; gives where it lies."""
    from pipeline.report.certificate import publish_page
    from trainer.checkpoint.digest import weights_digest
    from trainer.evidence.certificate import certify_replay

    output = Folder(recipe.train.output)
    name, row = certify_replay(output, purges, weights_digest)
    publish_page(output, name, row)
    return output.at(name)


def done_lines(recipe: TrainRecipe, result: TrainingResult) -> str:
    """What a finished training came to, and what to try next."""
    train = recipe.train
    tokens = result.step * train.global_batch * train.seq_len
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    out = train.outs[0].out
    return "\n".join(
        [
            f"Done: run {recipe.run.name!r}, {result.step:,} steps of {train.global_batch:,} sequences of"
            f" {train.seq_len:,} tokens ({tokens:,} in all){loss}.",
            f"Checkpoint {result.checkpoint} and metrics.jsonl lie in {train.output}.",
            "",
            "Next:",
            f"  sluice trace {shlex.quote(out)} --run {shlex.quote(recipe.run.name)} --step"
            f" {max(result.step - 1, 0)}",
            f"  sluice export {shlex.quote(train.output)} --to"
            f" {shlex.quote(train.output.rstrip('/') + '-model')}",
        ]
    )
