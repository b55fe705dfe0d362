"""Fill in a legal form or a catalogue entry about training data from lineage, with the SQL of each figure.

  sluice record --format eu-summary --statements-template            print the questions for the provider
  sluice record OUT --format eu-summary --statements-template --to stated.toml      with a table for each source
  sluice record OUT --format eu-summary --statements stated.toml --to summary.html
  sluice record OUT --format eu-summary --statements stated.toml --run RUN_OUTPUT   count readings of this run
  sluice record OUT --format eu-summary --statements stated.toml --against old.json --to new.json      list changes
  sluice record OUT --format ab2013 --statements california.toml --to ab2013.md
  sluice record OUT --format croissant --statements croissant.toml --to croissant.jsonld
  sluice record OUT --format eu-summary --sql "SELECT domain, sum(num_bytes) FROM used GROUP BY domain"

eu-summary: the public summary of the AI Act, Article 53(1)(d), in the template's order and wording.
ab2013:     the twelve items of California's Civil Code, section 3111(a).
croissant:  JSON-LD of the texts for catalogues, Croissant 1.1.

With --run, the record covers the documents that the newest checkpoint has read, including readings of earlier runs
whose weights it started from. Without --run, it covers all kept documents. Nothing is guessed: a field that neither
lineage nor the statements answer is marked open; the command lists these fields and exits with 1."""

from __future__ import annotations

import argparse

from lineage.index.output_index import check_outside
from lineage.recipe import RecipeError
from lineage.storage.folder import split
from pipeline.cli.arguments import add_json
from pipeline.cli.printing import print_json
from pipeline.terminal import visible

_FORMATS = ("eu-summary", "ab2013", "croissant")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("outs", nargs="*", metavar="OUT", help="outputs of the data pipeline")
    parser.add_argument("--format", required=True, choices=_FORMATS, help="the form")
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        dest="runs",
        metavar="RUN_OUTPUT",
        help="a training run whose readings count (train.output); repeatable",
    )
    parser.add_argument("--statements", metavar="FILE.toml", help="the file with the provider's statements")
    parser.add_argument(
        "--statements-template",
        action="store_true",
        help="print such a file, with a question for each field, or write it to --to FILE.toml",
    )
    parser.add_argument(
        "--against", metavar="OLD.json", help="an earlier record: report the changes since then"
    )
    parser.add_argument(
        "--to", metavar="FILE", help="the file to write: .json, .md, .html, or .jsonld (croissant)"
    )
    parser.add_argument("--sql", metavar="SELECT", help="print the rows of a SELECT over the record's tables")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.record.record import ask, make_record, statements_template
    from pipeline.record.render import check_target, publish_record

    if options.statements_template:
        _template(options, statements_template(options.outs, options.format))
        return 0
    if not options.outs:
        raise RecipeError("expected the OUTs that the record is of, or --statements-template")
    if options.sql is not None:
        print_json(ask(options.outs, options.runs, options.sql))
        return 0
    if options.to is not None:
        check_target(options.format, options.to)
    record = make_record(
        options.outs,
        options.format,
        runs=options.runs,
        statements=options.statements,
        against=options.against,
        to=options.to,
    )
    if options.to is not None:
        publish_record(record, options.to)
    if options.json:
        print_json(record.row)
    else:
        _print(record.row, options.to)
    return 1 if record.open else 0


def _template(options: argparse.Namespace, text: str) -> None:
    if options.to is not None:
        if not options.to.endswith(".toml"):
            raise RecipeError(
                f"--to {options.to!r}: expected a name that ends in .toml for --statements-template"
            )
        check_outside("--to", options.to)
        folder, name = split(options.to)
        if not folder.publish_new(name, text.encode()):
            raise RecipeError(f"--to {options.to} exists and may have answers: give another name")
    if options.json:
        print_json({"format": options.format, "file": options.to, "text": text})
    elif options.to is None:
        print(text, end="")
    else:
        print(visible(f"Wrote {options.to}. Next: answer its questions, then pass it with --statements"))


def _print(row: dict[str, object], to: str | None) -> None:
    figures = row["figures"]
    assert isinstance(figures, list)
    for figure in figures:
        value = "none" if figure["value"] is None else f"{figure['value']:,}"
        print(visible(f"{figure['name']}: {value} ({figure['unit']})"))
    changed = row.get("changed")
    if isinstance(changed, dict):
        print(f"changed since {changed['since']}: {'material' if changed['is_material'] else 'not material'}")
        for reason in changed["reasons"]:
            print(visible(f"  {reason}"))
        for name in changed["domains"]["gone"]:
            print(visible(f"  domain {name} is gone"))
    if to is not None:
        print(visible(f"record: {to}"))
    opened = row["open"]
    assert isinstance(opened, list)
    if opened:
        print(visible(f"open, {len(opened)}: {', '.join(opened)}"))
