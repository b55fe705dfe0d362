"""Compare thresholds on the ledger of a finished run: documents kept, lost and gained. It writes no output.

The run needs quality.ledger = "all", which records every measured value. These can change: the thresholds of
[quality] and its no_table, language.keep and min_score, the threshold of a classifier, and the matching share
of a benchmark item. Any other change is refused by name.

A rejected document that now passes is open if a later step never saw it, or saw its text before an edit. If
the run kept its texts (run.keep_text = true), the command decides the open documents from them; otherwise it
prints the `sluice run` command that decides them. Deduplication is not repeated: the figures count documents
that survive the filters.

  sluice tune --from OUT --set quality.min_words=80                OUT's own recipe, with another threshold
  sluice tune recipes/crawl.toml --from OUT --set quality.min_words=80
  sluice tune strict.toml loose.toml --from OUT --examples 3       side by side
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from pipeline.cli.arguments import add_json, add_set, count
from pipeline.cli.printing import console, print_json
from pipeline.terminal import counted, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lineage.storage.folder import Folder
    from pipeline.inspect.tune import TuneCounts, TuneResult

_SHOWN = 8


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipes",
        nargs="*",
        metavar="RECIPE",
        help="recipes that differ from the output's in thresholds (default: the output's recipe, with --set)",
    )
    parser.add_argument(
        "--from", dest="out", required=True, metavar="OUT", help="a finished output with quality.ledger = all"
    )
    add_set(parser, "one key of every recipe, as in --set quality.min_words=80")
    parser.add_argument(
        "--examples", type=count, default=5, metavar="N", help="example documents per outcome (5)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lineage.index.output_index import check_finished
    from lineage.storage.folder import Folder
    from pipeline.inspect.tune import tune
    from pipeline.recipe.load import load, recipe_of

    out = Folder(options.out)
    check_finished(out)
    recipes = [(path, load(path, options.overrides)) for path in options.recipes]
    recipes = recipes or [(out.at("recipe.toml"), recipe_of(out, options.overrides))]
    answers = tune(options.out, recipes, options.examples)
    if options.json:
        print_json([answer.as_json() for answer in answers])
        return 0
    _print_counts("recipe", [(visible(answer.recipe), answer.total) for answer in answers])
    for answer in answers:
        _print_answer(answer)
        if answer.total.open:
            _print_open(answer, out, options.overrides)
    return 0


def _print_counts(head: str, rows: Sequence[tuple[str, TuneCounts]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(head, overflow="fold")
    for name in ("before", "after", "lost", "gained", "open"):
        table.add_column(name, justify="right")
    for name, counts in rows:
        numbers = (counts.before, counts.after, counts.lost, counts.gained, counts.open)
        table.add_row(Text(name), *(f"{number:,}" for number in numbers))
    console().print(table)


def _print_open(answer: TuneResult, out: Folder, overrides: Sequence[str]) -> None:
    """What open means, how many no other rule rejects, and the call that decides them."""
    from pipeline.inspect.open_documents import keeps_texts

    print(
        f"  open: rejected documents that pass what was recorded of them; the steps up to {answer.judged_later_by[-1]}"
        f" have not seen their final text. {answer.open_alone:,} of {answer.total.open:,} are rejected by no other"
        " recorded rule"
    )
    again = [word for given in overrides for word in ("--set", given)]
    to = ["--set", f"run.output={out.url.rstrip('/')}-tuned"]
    if keeps_texts(out):
        print(
            f"  decides them: {shlex.join(['sluice', 'run', answer.recipe, '--from', out.url, *again, *to])}"
        )
    else:
        again += ["--set", "run.keep_text=true"]
        print(f"  decides them: {shlex.join(['sluice', 'run', answer.recipe, *again, *to])}")
        print("  (with its texts kept, later questions are answered from them)")


def _print_answer(answer: TuneResult) -> None:
    print(f"\n{visible(answer.recipe)}: judged again: {', '.join(answer.changed) or 'nothing'}")
    if answer.not_looked_at:
        print(f"  differ too and are not looked at: {', '.join(answer.not_looked_at)}")
    if answer.from_texts:
        print(
            f"  judged from their texts: {counted(answer.from_texts, 'document')} that the ledger left open"
        )
    if answer.num_relying:
        print(
            f"  {counted(answer.num_relying, 'document')} of the others had text cut that stays in lost ones"
            f" (dedup.inside, {counted(answer.num_relying_chars, 'character')}): in a run the next copy stays"
        )
    for rule, number in answer.by_rule[:_SHOWN]:
        print(f"  {number:,} lost by {visible(rule)}")
    for head, groups in (("language", answer.by_language), ("host", answer.by_host)):
        if groups and answer.total.lost + answer.total.gained + answer.total.open:
            _print_counts(head, [(visible(group.name or "none"), group) for group in groups[:_SHOWN]])
    for example in answer.examples:
        by = visible(example.rule or "")
        value = "" if example.value is None else f" {example.value:g}"
        against = "" if example.threshold is None else f" against {example.threshold:g}"
        was = "by" if example.outcome == "lost" else "was rejected by"
        print(
            f"  {example.outcome:<6} {example.doc_id} {was} {by}{value}{against} "
            f" {visible(example.url or '')}"
        )
