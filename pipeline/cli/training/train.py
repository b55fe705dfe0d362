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
(sluice trace OUT --runs RUN_OUTPUT lists them); lineage marks the undone steps as not applied. After a kill,
run the command again, with or without these options: it continues and does not go back a second time.

With [train.recovery] mode = "in_place" and spares = 1 or more, a lost process costs seconds: the survivors
keep their state, and a spare takes the lost place (docs/training.md).

Without Ray: --set ray.address=none trains with one worker in this process; a run that recovers in place
starts its own workers. For N workers: `torchrun --nproc-per-node N -m trainer recipes/train.toml`. If the
recipe has [[train.eval]], run `sluice train RECIPE --prepare` before torchrun."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

from pipeline.cli.arguments import add_json, add_recipe
from pipeline.cli.printing import print_json
from pipeline.terminal import visible_lines
from trainer.recovery.options import add_replay, read_replay

if TYPE_CHECKING:
    from trainer.options import TrainRecipe
    from trainer.processes.result import TrainingResult


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "training data, model and training options")
    add_replay(parser)
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="only tokenize the files of [[train.eval]] and scan the data for them, for torchrun",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from trainer.processes.asked_stacks import stacks_to_stderr

    stacks_to_stderr()
    from pipeline.phases.progress import ProgressReporter
    from pipeline.training.train import prepare_run, train_recipe
    from trainer.options import load_train_recipe

    reporter = ProgressReporter()
    recipe = load_train_recipe(options.recipe, options.overrides)
    reporter.say(f"{options.recipe}: training run {recipe.run.name!r}; checking its data and model")
    if options.prepare:
        prepare_run(recipe, reporter.say)
        if options.json:
            print_json({"prepared": [table.name for table in recipe.train.eval]})
        return 0
    ended = train_recipe(recipe, read_replay(options), reporter.say, file=options.recipe)
    result = ended.result
    if options.json:
        replay = {"replayed": result is not None, "purges": ended.purges, "certificate": ended.certificate}
        steps = {} if result is None else asdict(result)
        print_json(steps | replay if ended.purges or result is None else steps)
        return 0
    if result is not None and not result.finished:
        print(
            f"Stopped after step {result.step}; the same call continues from checkpoint {result.checkpoint}."
        )
        return 0
    if result is not None:
        print(visible_lines(done_lines(recipe, result)))
    if ended.certificate is not None:
        print(f"Certificate: {visible_lines(ended.certificate)}")
    return 0


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
