"""The training run of a recipe, on Ray Train; resumable: the same call again continues from the newest checkpoint.

  sluice train recipes/train.toml
  sluice train recipes/train.toml --set train.steps=200

Without Ray the same recipe runs as `torchrun --nproc-per-node N -m trainer recipes/train.toml`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from pipeline.cli.common import add_json, add_recipe, check_workers, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "the training data, the model and how to train it")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lineage.recipe import load_recipe
    from pipeline.phases.progress import ProgressReporter
    from trainer.options import TrainRecipe
    from trainer.preflight import check_recipe
    from trainer.processes.placement import local_cpus

    reporter = ProgressReporter()
    recipe = load_recipe(options.recipe, TrainRecipe, options.overrides)
    reporter.say(f"{options.recipe}: training run {recipe.run.name!r}; checking its data and model")
    for line in check_recipe(recipe):
        reporter.say(line)
    reporter.say("Starting Ray and the workers, which takes some seconds …")

    from pipeline.cluster.session import ray_session  # with Ray and torch, which a wrong recipe need not wait for
    from trainer.launch import check_training, train_on_ray

    check_training(recipe)
    with ray_session(recipe.ray.address, recipe.ray.num_cpus, training_cpus=local_cpus(recipe.train)):
        result = train_on_ray(recipe, check_workers)
    if options.json:
        print_json(asdict(result))
    elif result.finished:
        print(f"Done: {result.step} steps, loss {result.loss}, checkpoint {result.checkpoint} in {recipe.train.output}")
    else:
        print(f"Stopped after step {result.step}; the same call continues from checkpoint {result.checkpoint}.")
    return 0
