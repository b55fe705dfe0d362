"""Measure a classifier before a recipe uses it.

  sluice classifier evaluate toxic.bin --label toxic --against labelled.jsonl
  sluice classifier evaluate toxic.bin --label toxic --against labelled.jsonl --precision 0.9 --json
  sluice classifier evaluate toxic.bin --label toxic --against rows.jsonl --field comment --truth is_toxic

MODEL is a supervised fastText model or the folder of a transformers encoder, as in [[classifier]]. Each line
of the file is an object with a `text`, its `label` (a name, a list of names, or true or false) and optionally
a `language`.

The command prints precision and recall by threshold, with Wilson intervals, and by language. It also prints
the threshold with the highest recall that reaches the wanted precision: `wanted` judges by the measured
precision, `sure` by the lower end of its interval. A threshold always lies between two scores, so `reject` gives the
same decisions with `above` and `below`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from lineage.recipe import RecipeError
from pipeline.cli.arguments import add_action, add_json
from pipeline.cli.printing import print_json
from pipeline.terminal import short_number, visible

if TYPE_CHECKING:
    from pipeline.inspect.evaluation import AtThreshold, Evaluation, Interval

_SHOWN: Final = 15
"""Thresholds that are printed; --json has all."""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    evaluate = add_action(actions, "evaluate", "precision and recall on labelled texts", __doc__)
    evaluate.add_argument(
        "model", metavar="MODEL", help="a fastText model, or the folder of a transformers encoder"
    )
    evaluate.add_argument(
        "--against", required=True, metavar="FILE.jsonl", help="the labelled texts, one object per line"
    )
    evaluate.add_argument("--label", required=True, help="the label to evaluate")
    evaluate.add_argument("--field", default="text", metavar="KEY", help="the key of the text (text)")
    evaluate.add_argument("--truth", default="label", metavar="KEY", help="the key of the labels (label)")
    evaluate.add_argument(
        "--language-field", default="language", metavar="KEY", help="the key of the language (language)"
    )
    evaluate.add_argument(
        "--precision",
        type=_share,
        default=0.95,
        metavar="X",
        help="the precision to reach (0.95)",
    )
    evaluate.add_argument(
        "--confidence",
        type=_share,
        default=0.95,
        metavar="X",
        help="the confidence level of the intervals (0.95)",
    )
    add_json(evaluate)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number between 0 and 1")
    return value


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.evaluation import evaluation, read_labelled, scores_of

    label = options.label.removeprefix("__label__")
    fields = {"text": options.field, "label": options.truth, "language": options.language_field}
    if len(set(fields.values())) < len(fields):
        raise RecipeError(
            f"--field, --truth and --language-field name {fields}: expected three different keys"
        )
    texts = read_labelled(options.against, label, fields)
    found = evaluation(scores_of(texts, options.model, label), label, options.precision, options.confidence)
    if options.json:
        print_json({"model": options.model, "against": options.against, **asdict(found)})
        return 0
    for line in _lines(found):
        print(visible(line))
    for language, of_language in found.by_language.items():
        print()
        print(visible(f"{language}:"))
        for line in _lines(of_language):
            print(visible(line))
    return 0


def _lines(found: Evaluation) -> Iterator[str]:
    from pipeline.inspect.evaluation import points

    yield (
        f"{found.num_texts:,} texts, {found.num_positive:,} of them {found.label};"
        f" average precision {found.average_precision:.3f}"
    )
    yield f"{'threshold':>12} {'found':>7} {'right':>7}  precision             recall"
    for at in points(found.curve, _SHOWN):
        yield _row(at)
    of = f"precision of at least {found.wanted_precision:g}"
    yield f"wanted, {of}: {_described(found.wanted)}"
    yield f"sure, with its interval's lower end ({found.confidence:.0%}): {_described(found.sure)}"


def _described(at: AtThreshold | None) -> str:
    return "no threshold" if at is None else " ".join(_row(at).split())


def _row(at: AtThreshold) -> str:
    shares = f"{_shown(at.precision)}  {_shown(at.recall)}"
    return f"{short_number(at.threshold):>12} {at.num_found:>7,} {at.num_right:>7,}  {shares}"


def _shown(share: Interval | None) -> str:
    return "-" if share is None else f"{share.value:.3f} ({share.low:.3f}–{share.high:.3f})"
