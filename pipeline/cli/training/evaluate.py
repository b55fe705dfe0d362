"""Score a checkpoint or an exported folder on texts or on questions with choices.

  sluice eval RUN_OUTPUT --on arc.jsonl                     the newest checkpoint
  sluice eval RUN_OUTPUT --on mmlu.parquet --shots 5 --shots-from mmlu-dev.parquet
  sluice eval RUN_OUTPUT --on pages.jsonl --step 2000
  sluice eval DIR --on arc.jsonl                            a folder of safetensors, as sluice export writes it
  sluice eval RUN_OUTPUT --to eval.html                     the scores of [[train.eval]], step by step, as a page

A file is JSONL or Parquet. Its fields determine the format: text; question, choices and answer; or the fields of ARC,
OpenBookQA, CommonsenseQA, HellaSwag, MMLU, PIQA, WinoGrande, SciQ, BoolQ or Social IQa (docs/evaluation.md).
  texts     bits per byte: the loss over the bytes of all texts, in windows of the model's context
  choices   accuracy; accuracy normalised by the bytes of each choice; bits per byte of the right choice
The definitions are those of lm-eval 0.4.13 and of OLMo, so scores are comparable.

The command scans the training data of the run for the items, with the rules of sluice scan. It also scans the data of
earlier runs whose weights the run started from (train.init_from). The table shows the score on all items and on the
unseen items. It names the first step that read an item, and the last clean checkpoint. The result of the scan is cached
in RUN_OUTPUT/evaluations."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lineage.index.output_index import check_outside
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from pipeline.cli.arguments import add_json, count
from pipeline.cli.printing import print_json
from pipeline.terminal import counted, visible

if TYPE_CHECKING:
    from trainer.evaluation.result import EvaluationResult
    from trainer.evaluation.scores import TaskScore


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place",
        metavar="RUN_OUTPUT|DIR",
        help="the output of a training run (train.output), or a folder of safetensors",
    )
    parser.add_argument(
        "--on",
        nargs="+",
        metavar="FILE",
        help="the items: .jsonl or .parquet files (default: show the scores recorded during training)",
    )
    parser.add_argument("--to", metavar="EVAL.html", help="write the scores as a self-contained page")
    parser.add_argument(
        "--kind", choices=["text", "choices"], help="the format of the files (default: by their fields)"
    )
    parser.add_argument(
        "--shots", type=count, default=0, metavar="N", help="solved questions before each question (0)"
    )
    parser.add_argument(
        "--shots-from",
        metavar="FILE",
        help="the file of the solved questions, its first N (default: the first N other questions of --on)",
    )
    parser.add_argument("--step", type=count, metavar="T", help="the checkpoint of T steps (the newest)")
    parser.add_argument("--tokenizer", metavar="FILE", help="the tokenizer file of the training data")
    parser.add_argument("--no-scan", action="store_true", help="do not scan the training data for the items")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if options.to is not None:
        if not options.to.endswith(".html"):
            raise RecipeError(f"--to {options.to!r}: expected a name that ends in .html")
        check_outside("--to", options.to)
    results, read = _recorded(options) if options.on is None else _evaluated(options)
    if options.to is not None:
        from pipeline.report.training.evaluation import render_evaluations

        folder, name = split(options.to)
        folder.publish(name, render_evaluations(read, results).encode())
    if options.json:
        rows = [result.to_json() | {"read": read} for result in results]
        print_json(rows if options.on is None else rows[0])
        return 0
    for result in results:
        steps = "" if result.step is None else f", {counted(result.step, 'step')}"
        print(visible(f"{result.name} on {read}{steps}"))
        for line in result_lines(result):
            print(visible(line))
    if options.to is not None:
        print(visible(f"Page: {options.to}"))
    return 0


def _evaluated(options: argparse.Namespace) -> tuple[tuple[EvaluationResult, ...], str]:
    from pipeline.phases.progress import ProgressReporter
    from pipeline.training.evaluation.evaluate import evaluate, evaluation_of

    found = evaluate(
        options.place,
        evaluation_of(options.on, kind=options.kind, shots=options.shots, shots_from=options.shots_from),
        ProgressReporter(),
        step=options.step,
        tokenizer=options.tokenizer,
        scans=not options.no_scan,
    )
    return (found.result,), found.read


def _recorded(options: argparse.Namespace) -> tuple[tuple[EvaluationResult, ...], str]:
    from pipeline.training.evaluation.recorded import recorded_evaluations

    for name in ("kind", "shots", "shots_from", "tokenizer", "no_scan"):
        if getattr(options, name):
            raise RecipeError(f"--{name.replace('_', '-')} goes with --on FILE")
    output = Folder(options.place)
    results = recorded_evaluations(output)
    chosen = tuple(one for one in results if options.step in (None, one.step))
    if not chosen:
        steps = ", ".join(dict.fromkeys(str(one.step) for one in results))
        raise RecipeError(f"--step {options.step}: the run evaluated itself after steps {steps}")
    return chosen, output.url


def result_lines(result: EvaluationResult) -> Iterator[str]:
    """A result as a table, and what the model had read, in words."""
    rows: list[tuple[str, EvaluationResult | TaskScore]] = [("all items", result)]
    if result.clean is not None and result.seen:
        rows.append(("not read before", result.clean))
    yield f"{'':<16}{'items':>8}{'accuracy':>10}{'norm':>8}{'bits per byte':>15}"
    for name, score in rows:
        shown = [
            "-" if value is None else f"{value:.4f}"
            for value in (score.accuracy, score.accuracy_norm, score.bits_per_byte)
        ]
        yield f"{name:<16}{score.num_items:>8,}{shown[0]:>10}{shown[1]:>8}{shown[2]:>15}"
    yield from read_lines(result)


def read_lines(result: EvaluationResult) -> Iterator[str]:
    """What the model had read of the items, in words."""
    if result.seen:
        for run in dict.fromkeys(each.run for each in result.seen):
            seen = [each for each in result.seen if each.run == run]
            first = min(seen, key=lambda each: each.first_step)
            whose = "" if run is None else f" of run {run}, with whose weights it began"
            rows = counted(sum(each.readings for each in seen), "row")
            yield (
                f"{counted(len(seen), 'item')} read in training, in {rows}"
                f" of batches, first in step {first.first_step}{whose} (item {first.item})"
            )
    elif result.seen is not None:
        yield "no item read in training"
    if result.seen:
        yield (
            "no checkpoint of the run is clean of them"
            if result.last_clean_checkpoint is None
            else "last clean checkpoint: "
            + (
                f"{result.last_clean_checkpoint}"
                if result.last_clean_checkpoint
                else "the first weights (no checkpoint that is clean is kept)"
            )
        )
    if result.num_too_short:
        yield f"{counted(result.num_too_short, 'item')} not scanned: fewer than 5 words"
    yield from (f"not known: {line}" for line in result.unknown)
