"""Find mixing weights (the share of each source in training) from many small runs.

sluice mix design recipes/train.toml       the mixtures of the ablation ([mix] in the training recipe)
sluice mix run recipes/train.toml          train on each of them; resumable
sluice mix fit recipes/train.toml --target web --model log_linear
sluice mix optimize recipes/train.toml     the [[train.mixture]] block to paste
sluice mix report recipes/train.toml       one page: predicted and measured losses, responses, noise, cost

sluice mix fit --weights W.csv --losses L.csv --target pile_cc --model log_linear      on published tables
sluice mix doremi RECIPE                    DoReMi: a reference, a proxy with group weights, averaged weights
sluice mix em RECIPE --against target.jsonl                 shares of sources that match the words of a target
sluice mix dsir RECIPE --against target.jsonl --keep 1000 --to chosen.jsonl        documents that resemble a target
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from lineage.recipe import RecipeError
from pipeline.cli.arguments import add_action, add_json, add_recipe, add_set, quoted_recipe
from pipeline.cli.printing import console, print_json
from pipeline.training.workers import check_workers

if TYPE_CHECKING:
    from trainer.mix.ablation import AblationLaunch
    from trainer.mix.fit import Fit, PredictionScore
    from trainer.mix.optimize import Choice
    from trainer.mix.proxies import Ablation
    from trainer.mix.swarm import Swarm
    from trainer.options import DataTable


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, what in (
        ("design", "list the mixtures of the ablation"),
        ("run", "train on each mixture; resumable"),
        ("doremi", "weights by DoReMi: raise sources on which a proxy is worse than a reference"),
    ):
        action = add_action(actions, name, what, __doc__)
        add_recipe(action, "a training run, with [mix]")
        add_json(action)
        if name == "run":
            action.add_argument(
                "--parallel", type=int, metavar="N", help="proxy runs in parallel (as many as fit)"
            )
    _configure_fit(
        add_action(actions, "fit", "fit a model and measure its ranking of unseen mixtures", __doc__)
    )
    for name, what in (
        ("optimize", "choose the mixture to train on, with its regret"),
        ("report", "write one page on the whole ablation"),
    ):
        action = add_action(actions, name, what, __doc__)
        add_recipe(action, "a training run, with [mix]")
        action.add_argument(
            "--model", default="log_linear", metavar="NAME", help="log_linear, quadratic, lightgbm, …"
        )
        add_json(action)
    for name, what in (
        ("dsir", "choose documents that resemble a target"),
        ("em", "find shares of sources that match a target"),
    ):
        action = add_action(actions, name, what, __doc__)
        add_recipe(action, "a training run, whose train.data is compared")
        action.add_argument(
            "--against", required=True, metavar="FILE.jsonl", help="the target, one text per line"
        )
        action.add_argument("--field", default="text", help="the key of the text (text)")
        if name == "dsir":
            action.add_argument("--keep", type=int, required=True, metavar="K", help="documents to choose")
            action.add_argument(
                "--to",
                required=True,
                metavar="FILE.jsonl",
                help="the file for the ids of the chosen documents",
            )
            action.add_argument("--seed", type=int, default=0, help="the seed of the choice (0)")
        add_json(action)


def _configure_fit(fit: argparse.ArgumentParser) -> None:
    fit.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="the recipe of the ablation; without it, give --weights and --losses",
    )
    add_set(fit, "one key")
    fit.add_argument(
        "--weights", metavar="W.csv", help="a published table: one column per source, one row per run"
    )
    fit.add_argument("--losses", metavar="L.csv", help="its losses: one column per target, the same runs")
    fit.add_argument(
        "--test-weights",
        metavar="W2.csv",
        help="runs to score on (default: held-out runs, or cross-validation)",
    )
    fit.add_argument("--test-losses", metavar="L2.csv", help="the losses of these runs")
    fit.add_argument(
        "--target", required=True, metavar="COLUMN", help="a column of the losses, or a part of its name"
    )
    fit.add_argument(
        "--model", required=True, metavar="NAME", help="log_linear, lightgbm, … (a wrong name lists all)"
    )
    fit.add_argument("--force", action="store_true", help="fit even with fewer runs than the model needs")
    add_json(fit)


def run(options: argparse.Namespace) -> int:
    actions = {
        "design": _design,
        "run": _run,
        "fit": _fit,
        "optimize": _optimize,
        "report": _report,
        "dsir": _dsir,
        "em": _em,
        "doremi": _doremi,
    }
    actions[options.action](options)
    return 0


def _open(options: argparse.Namespace) -> Ablation:
    from pipeline.inspect.first_tokenizer import compare_file
    from pipeline.phases.progress import ProgressReporter
    from trainer.mix.proxies import open_ablation
    from trainer.options import load_train_recipe

    recipe = load_train_recipe(options.recipe, options.overrides)
    return open_ablation(recipe, compare_file, ProgressReporter().say)


def _launch(ablation: Ablation, num_parallel: int | None = None) -> AblationLaunch:
    """How the ablation's runs are started. A cluster is joined once a run is due: what is finished needs
    none."""
    from pipeline.cluster.session import ray_session
    from pipeline.phases.progress import ProgressReporter
    from trainer.mix.ablation import AblationLaunch

    return AblationLaunch(
        num_parallel=num_parallel,
        connect=lambda: ray_session(ablation.recipe.ray.address),
        say=ProgressReporter().say,
        check_workers=check_workers,
    )


def _design(options: argparse.Namespace) -> None:
    from lineage.storage.lock import hold
    from trainer.mix.proxies import is_designed, write_design

    ablation = _open(options)
    if not is_designed(ablation):
        with hold(ablation.folder, "sluice mix design"):
            write_design(ablation)
    if options.json:
        payload = {
            "file": ablation.folder.at("design.json"),
            "runs": [asdict(point) for point in ablation.points],
        }
        cost = {
            "validation_tokens_per_run": ablation.validation_tokens,
            "flops_per_run": ablation.flops_per_run,
        }
        print_json(payload | {"tokens_per_run": ablation.tokens} | cost)
        return
    for point in ablation.points:
        shares = "  ".join(f"{source} {share:.3f}" for source, share in point.weights.items())
        print(f"{point.name:<16} seed {point.seed:<6} {shares}")
    print(_cost(ablation))
    print(
        f"{len(ablation.points)} runs of {ablation.tokens:,} tokens; next: sluice mix run"
        f" {quoted_recipe(options)}"
    )


def _cost(ablation: Ablation) -> str:
    """What a run takes, and all of them."""
    num, flops = len(ablation.points), ablation.flops_per_run
    share = 1 - ablation.flops_per_token * ablation.tokens / flops
    return (
        f"A run trains on {ablation.tokens:,} tokens and is judged on {ablation.validation_tokens:,} held-out"
        f" ones: {flops:.2g} floating-point operations, {share:.0%} of them for validation"
        f" (mix.proxy.validation_tokens); the {num} runs {num * flops:.2g}.{_seconds(ablation)}"
    )


def _seconds(ablation: Ablation) -> str:
    """What the runs took that are done."""
    from trainer.mix.proxies import pending, read_result

    waiting = pending(ablation)
    took = [read_result(ablation, point).seconds for point in ablation.points if point not in waiting]
    return f" {len(took)} are done, which took {sum(took) / len(took):.1f} s of steps each." if took else ""


def _run(options: argparse.Namespace) -> None:
    from trainer.mix.ablation import run_ablation
    from trainer.mix.proxies import noise_floor, results

    if options.parallel is not None and options.parallel < 1:
        raise RecipeError(f"--parallel {options.parallel}: expected at least 1")
    ablation = _open(options)
    run_ablation(ablation, _launch(ablation, options.parallel))
    floor = noise_floor(results(ablation), ablation.goal())
    if options.json:
        print_json({"runs": [asdict(result) for result in results(ablation)], "noise_floor": floor})
    else:
        print(
            f"Done: {len(ablation.points)} runs, tables in {ablation.folder.url}; noise floor {_nats(floor)}"
        )


def _nats(value: float | None) -> str:
    return "unknown (no replicates)" if value is None else f"{value:.4f} nats"


def _fit(options: argparse.Namespace) -> None:
    from trainer.mix.fit import Judgement, judge

    train, test = _swarms(options)
    fit = judge(train, test, Judgement(target=options.target, model=options.model, force=options.force))
    if options.json:
        print_json(_fit_json(fit))
    else:
        _print_fit(fit)


def _swarms(options: argparse.Namespace) -> tuple[Swarm, Swarm | None]:
    """The runs to fit on and those to score on: of the recipe's ablation, or of published tables."""
    from trainer.mix.swarm import read_swarm

    tables = (options.weights, options.losses)
    if any(tables) if options.recipe else not all(tables):
        raise RecipeError("mix fit needs either a RECIPE or --weights and --losses")
    if bool(options.test_weights) != bool(options.test_losses):
        raise RecipeError("--test-weights and --test-losses belong together: give both or neither")
    train, held_out = _swarms_of_ablation(options) if options.recipe else (read_swarm(*tables), None)
    return train, read_swarm(options.test_weights, options.test_losses) if options.test_weights else held_out


def _swarms_of_ablation(options: argparse.Namespace) -> tuple[Swarm, Swarm | None]:
    from trainer.mix.proxies import fitted, results, swarm_of

    found = results(_open(options))
    held_out = [result for result in found if result.role == "held_out"]
    return swarm_of(fitted(found)), swarm_of(held_out) if len(held_out) >= 3 else None


def _fit_json(fit: Fit) -> dict[str, object]:
    return {
        "model": fit.model,
        "target": fit.target,
        "num_runs": fit.num_runs,
        "held_out": fit.held_out,
        **asdict(fit.score),
        "baselines": {name: asdict(score) for name, score in fit.baselines.items()},
    }


def _print_fit(fit: Fit) -> None:
    from rich.table import Table

    table = Table(
        "", "Spearman", "95 %", "mean error (nats)", title=f"{fit.target}, {fit.num_runs} runs", box=None
    )
    for name, score in (
        {fit.model: fit.score} | {f"baseline {n}": s for n, s in fit.baselines.items()}
    ).items():
        table.add_row(name, *_cells(score))
    console().print(table)


def _cells(score: PredictionScore) -> tuple[str, str, str]:
    if score.spearman is None or score.interval is None:
        return "none: constant", "", f"{score.mae:.4f}"
    return f"{score.spearman:.4f}", f"{score.interval[0]:.4f} to {score.interval[1]:.4f}", f"{score.mae:.4f}"


def _optimize(options: argparse.Namespace) -> None:
    from trainer.mix.optimize import recommend
    from trainer.mix.proxies import fitted, noise_floor, results, swarm_of
    from trainer.mix.report import optimisable

    ablation = _open(options)
    found = results(ablation)
    swarm, goal = swarm_of(fitted(found)), ablation.goal().for_model(options.model)
    choice = recommend(ablation.space, swarm, optimisable(options.model, swarm), goal)
    floor = noise_floor(found, goal)
    if options.json:
        payload = asdict(choice) | {"toml": choice.as_toml(), "noise_floor": floor}
        payload |= {"verdict": choice.verdict(floor)}
        print_json(payload | {"budget_tokens": goal.budget_tokens})
    else:
        _print_choice(choice, floor)


def _print_choice(choice: Choice, floor: float | None) -> None:
    from trainer.mix.optimize import verdict_sentence

    verdict = choice.verdict(floor)
    print(f"# {verdict_sentence(verdict, floor)}")
    # Pasted or redirected into a recipe, a mixture that is no better changes nothing.
    aside = "# " if verdict == "within_noise" else ""
    print("\n".join(f"{aside}{line}".rstrip() for line in choice.as_toml().splitlines()), end="\n\n")
    low, high = choice.interval
    print(
        f"# predicted loss {choice.predicted:.4f} ({low:.4f} to {high:.4f}); natural {choice.natural:.4f}, "
        f"uniform {choice.uniform:.4f}; noise floor {_nats(floor)}"
    )
    mean, high = choice.regret
    print(f"# regret that the runs allow: {mean:.4f} on average, {high:.4f} at the 95th percentile")
    for source, epochs in choice.epochs.items():
        print(
            f"# {source}: {epochs:.2f} epochs, a token is worth {choice.token_value[source]:.3f} of a new one"
        )


def _report(options: argparse.Namespace) -> None:
    from pipeline.report.training.mix import REPORT, as_plain, render_mix
    from trainer.mix.report import make_report

    ablation = _open(options)
    report = make_report(ablation, options.model)
    ablation.folder.publish(REPORT, render_mix(report).encode())
    if options.json:
        print_json(as_plain(report) | {"file": ablation.folder.at(REPORT)})
    else:
        print(ablation.folder.at(REPORT))


def _doremi(options: argparse.Namespace) -> None:
    from trainer.mix.ablation import run_doremi
    from trainer.mix.doremi_job import trainable
    from trainer.mix.optimize import mixture_toml

    ablation = _open(options)
    answer = run_doremi(ablation, _launch(ablation))
    toml = mixture_toml(trainable(ablation, answer))
    if options.json:
        print_json(asdict(answer) | {"toml": toml})
        return
    print(toml)
    for source, excess in answer.excess.items():
        print(f"# {source}: {answer.last[source]:.4f} at the end, excess loss {excess:.4f} nats")


def _compared(options: argparse.Namespace) -> tuple[tuple[DataTable, ...], list[str]]:
    from pipeline.inspect.likeness import target_texts
    from trainer.options import load_train_recipe

    recipe = load_train_recipe(options.recipe, options.overrides)
    return recipe.train.outs, target_texts(options.against, options.field)


def _dsir(options: argparse.Namespace) -> None:
    from lineage.index.output_index import check_outside
    from lineage.storage.folder import split
    from pipeline.inspect.likeness import choose_documents

    check_outside("--to", options.to)
    summary, rows = choose_documents(*_compared(options), options.keep, options.seed)
    folder, name = split(options.to)
    folder.publish(name, "".join(json.dumps(row) + "\n" for row in rows).encode())
    if options.json:
        print_json(summary.as_plain() | {"file": options.to})
        return
    effect = "none" if summary.length_effect is None else f"{summary.length_effect:.3f}"
    print(
        f"{summary.num_chosen} of {summary.num_documents} documents, listed in {options.to}; effective sample"
        f" size {summary.effective_sample_size:.1f}; correlation of weight and length {effect}"
    )
    for source, num in summary.by_source.items():
        print(f"{source}: {num}")


def _em(options: argparse.Namespace) -> None:
    from pipeline.inspect.likeness import likely_shares

    shares = likely_shares(*_compared(options))
    if options.json:
        print_json({"shares": shares})
    else:
        for source, share in shares.items():
            print(f"{source}: {share:.4f}")
