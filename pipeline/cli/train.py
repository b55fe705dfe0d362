"""The training run of a recipe, on Ray Train; resumable: the same call again continues from the newest checkpoint.

  sluice train recipes/train.toml
  sluice train recipes/train.toml --set train.steps=200

Without Ray the same recipe runs as `torchrun --nproc-per-node N -m trainer recipes/train.toml`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from pipeline.cli.common import add_json, add_recipe, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser, "the training data, the model and how to train it")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lineage.recipe import load_recipe
    from pipeline.cluster.engine import check_workers
    from trainer.launch import train_on_ray
    from trainer.options import TrainRecipe

    recipe = load_recipe(options.recipe, TrainRecipe, options.overrides)
    result = train_on_ray(recipe, check_workers)
    if options.json:
        print_json(asdict(result))
    elif result.finished:
        print(f"Done: {result.step} steps, loss {result.loss}, checkpoint {result.checkpoint} in {recipe.train.output}")
    else:
        print(f"Stopped after step {result.step}; the same call continues from checkpoint {result.checkpoint}.")
    return 0
