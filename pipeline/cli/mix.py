"""Mixing weights: how much of each source to train on, from many small runs.

  sluice mix fit --weights W.csv --losses L.csv --target pile_cc --model log_linear

`fit` tells how well a model ranks mixtures that it was not fitted on, beside trivial baselines.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from lineage.recipe import RecipeError
from pipeline.cli.common import add_json, console, print_json

if TYPE_CHECKING:
    from trainer.mix.fit import Fit, Score


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _configure_fit(actions.add_parser("fit", help="how well a model ranks mixtures it has not seen"))


def _configure_fit(fit: argparse.ArgumentParser) -> None:
    fit.add_argument("--weights", metavar="W.csv", help="a published table: a column a source, a row a run")
    fit.add_argument("--losses", metavar="L.csv", help="its losses: a column a target, the same runs")
    fit.add_argument("--test-weights", metavar="W2.csv", help="runs to score on; else folds are left out in turn")
    fit.add_argument("--test-losses", metavar="L2.csv", help="and their losses")
    fit.add_argument("--target", required=True, metavar="COLUMN", help="a column of the losses, or a part of its name")
    fit.add_argument("--model", required=True, metavar="NAME", help="log_linear, lightgbm, … (a wrong name lists all)")
    fit.add_argument("--force", action="store_true", help="also with fewer runs than the model should have")
    add_json(fit)


def run(options: argparse.Namespace) -> int:
    return _fit(options)


def _fit(options: argparse.Namespace) -> int:
    from trainer.mix.fit import Judgement, judge
    from trainer.mix.swarm import read_swarm

    if not options.weights or not options.losses:
        raise RecipeError("mix fit needs --weights and --losses")
    if bool(options.test_weights) != bool(options.test_losses):
        raise RecipeError("--test-weights and --test-losses belong together: give both or neither")
    train = read_swarm(options.weights, options.losses)
    test = read_swarm(options.test_weights, options.test_losses) if options.test_weights else None
    fit = judge(train, test, Judgement(target=options.target, model=options.model, force=options.force))
    if options.json:
        print_json(_fit_json(fit))
    else:
        _print_fit(fit)
    return 0


def _fit_json(fit: Fit) -> dict[str, object]:
    return {
        "model": fit.model, "target": fit.target, "num_runs": fit.num_runs, "held_out": fit.held_out,
        **asdict(fit.score), "baselines": {name: asdict(score) for name, score in fit.baselines.items()},
    }  # fmt: skip


def _print_fit(fit: Fit) -> None:
    from rich.table import Table

    table = Table("", "Spearman", "95 %", "mean error (nats)", title=f"{fit.target}, {fit.num_runs} runs", box=None)
    for name, score in ({fit.model: fit.score} | {f"baseline {n}": s for n, s in fit.baselines.items()}).items():
        table.add_row(name, *_cells(score))
    console().print(table)


def _cells(score: Score) -> tuple[str, str, str]:
    if score.spearman is None or score.interval is None:
        return "none: constant", "", f"{score.mae:.4f}"
    return f"{score.spearman:.4f}", f"{score.interval[0]:.4f} to {score.interval[1]:.4f}", f"{score.mae:.4f}"
