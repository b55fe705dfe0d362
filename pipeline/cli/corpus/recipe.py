"""List the keys of recipes; write, check or compare recipes.

  sluice recipe keys                          every key of the data and the training recipe
  sluice recipe keys quality.max              keys with this prefix, with default, unit and source
  sluice recipe new fineweb --to my.toml      a commented recipe (fineweb, fineweb2, dclm, dolma3, code, text, …)
  sluice recipe new text --set 'source.0.inputs=["posts/*.jsonl"]' --set run.output=out/texts --to texts.toml
  sluice recipe check my.toml                 list its errors, with line and column; exit code 2 if any
  sluice recipe diff recipes/crawl.toml my.toml      the values that differ, defaults included
  sluice recipe diff my.toml --against fineweb       its changes to a published recipe, and the rules of that recipe
                                              that are approximated or missing here, with reasons (docs/recipes.md)
  sluice recipe schema data --to data.json    its JSON Schema, for editors (Taplo, Even Better TOML): put
                                              `#:schema ./data.json` into the first line of a recipe

`check` checks keys, values and their combinations. It opens neither the inputs nor the files that a recipe
names; `sluice run` and `sluice train` do so before they start Ray. `diff` accepts a finished output in place
of a recipe. A different order of sources, classifiers or steps is a difference, because it makes another run."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lineage.recipe import RecipeError, utf8_text
from pipeline.cli.arguments import add_action, add_json, add_set
from pipeline.cli.printing import print_json
from pipeline.recipe_help.named import KINDS, NAMED
from pipeline.terminal import speaks_unicode, visible

if TYPE_CHECKING:
    from pipeline.recipe_help.differ import RecipeDifference
    from pipeline.recipe_help.keys import RecipeKey


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    keys = add_action(actions, "keys", "list keys with type, default and meaning", __doc__)
    keys.add_argument(
        "prefix",
        nargs="?",
        default="",
        metavar="PREFIX",
        help="only keys with this prefix, for example dedup",
    )
    keys.add_argument(
        "--markdown", action="store_true", help="print the Markdown page docs/recipe.md instead"
    )
    new = add_action(actions, "new", "write a commented recipe that runs", __doc__)
    new.add_argument(
        "kind",
        choices=KINDS,
        metavar="KIND",
        help="fineweb, fineweb2, dclm, dolma3: the published recipes for crawls; code: source"
        " files; text: JSONL or Parquet rows; train: a training run; mix: an ablation of mixing weights",
    )
    new.add_argument(
        "--to", metavar="FILE", help="the file to write (stdout); an existing file is not overwritten"
    )
    add_set(new, "one key, as in --set run.output=out/mine")
    check = add_action(actions, "check", "list the errors of a recipe", __doc__)
    check.add_argument("file", metavar="FILE", help="a .toml file")
    add_set(check)
    diff = add_action(actions, "diff", "list the values in which two recipes differ", __doc__)
    diff.add_argument("a", metavar="A", help="a .toml file, or the folder of a finished run's output")
    diff.add_argument("b", metavar="B", nargs="?", help="another recipe or output")
    diff.add_argument(
        "--against", choices=NAMED, metavar="NAME", help=f"a published recipe: {', '.join(NAMED)}"
    )
    schema = add_action(actions, "schema", "write the JSON Schema of a recipe, for editors", __doc__)
    schema.add_argument(
        "kind",
        nargs="?",
        choices=("data", "train"),
        metavar="KIND",
        help="data (with [[source]]) or train (with [train]); default: one schema for both, which editors"
        " cannot use for completion",
    )
    schema.add_argument(
        "--to", metavar="FILE", help="the file to write (stdout); an existing file is replaced"
    )
    for action in (keys, new, check, diff, schema):
        add_json(action)


def run(options: argparse.Namespace) -> int:
    actions = {"keys": _keys, "new": _new, "check": _check, "diff": _diff, "schema": _schema}
    return actions[options.action](options)


def _keys(options: argparse.Namespace) -> int:
    import difflib

    from pipeline.recipe_help.keys import recipe_keys
    from pipeline.recipe_help.page import page

    if options.markdown:
        sys.stdout.write(page())
        return 0
    found = recipe_keys(options.prefix)
    if not found:
        names = {key.name for key in recipe_keys()} | {key.table for key in recipe_keys()}
        close = difflib.get_close_matches(options.prefix, sorted(names), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise RecipeError(f"no key begins with {options.prefix!r}{hint}", options.prefix)
    if options.json:
        print_json([asdict(key) for key in found])
        return 0
    table = ("", "")
    for key in found:
        if table != (key.recipe, key.table):
            table = (key.recipe, key.table)
            _print_table(key)
        _print_key(key)
    return 0


def _print_table(key: RecipeKey) -> None:
    from pipeline.recipe_help.keys import recipe_tables
    from pipeline.recipe_help.tables import PARAGRAPHS

    header = next(table.header for table in recipe_tables(key.recipe) if table.name == key.table)
    of = "data" if key.recipe == "data" else "training"
    print(f"\n{header} of a {of} recipe: {PARAGRAPHS.get((key.recipe, key.table), '')}")


def _print_key(key: RecipeKey) -> None:
    from pipeline.recipe_help.page import meaning

    default = "required" if key.is_required else f"default {key.shown_default}"
    print(f"  {key.name}: {key.type}, {default}")
    if text := meaning(key):
        print(f"      {text}")
    if key.names:
        print(
            textwrap.fill(", ".join(key.names), width=100, initial_indent=" " * 6, subsequent_indent=" " * 6)
        )


def _new(options: argparse.Namespace) -> int:
    from pipeline.recipe_help.new import new_recipe

    text = new_recipe(options.kind, options.overrides)
    if options.to is not None:
        try:
            with open(options.to, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError as error:
            raise RecipeError(
                f"--to {options.to}: the file is there already and stays: name another one"
            ) from error
    if options.json:
        print_json({"kind": options.kind, "file": options.to, "text": text})
    elif options.to is None:
        sys.stdout.write(text)
    else:
        command = {"train": "train", "mix": "mix run"}.get(options.kind, "run")
        path = shlex.quote(options.to)
        print(visible(f"Wrote {options.to}. Next: sluice recipe check {path}, then sluice {command} {path}"))
    return 0


def _check(options: argparse.Namespace) -> int:
    from pipeline.recipe.checks import unread_keys
    from pipeline.recipe.load import load
    from pipeline.recipe_help.check import check_recipe

    try:
        data = Path(options.file).read_bytes()
    except OSError as error:
        raise RecipeError(f"{options.file} cannot be read: {error}") from error
    text = utf8_text(data, options.file)
    kind, problems = check_recipe(text, options.overrides)
    notes = unread_keys(load(options.file, options.overrides)) if kind == "data" and not problems else []
    if options.json:
        told = [
            {"message": problem.message, "key": problem.key}
            | (asdict(problem.position) if problem.position else {"line": None, "column": None})
            for problem in problems
        ]
        print_json({"file": options.file, "kind": kind, "problems": told, "notes": notes})
        return 2 if problems else 0
    for problem in problems:
        place = f":{problem.position.line}:{problem.position.column}" if problem.position else ""
        print(visible(f"{options.file}{place}: {problem.message}"))
    if not problems:
        print(f"{options.file}: a {'data' if kind == 'data' else 'training'} recipe, no errors")
    for note in notes:
        print(visible(f"note: {note}"))
    return 2 if problems else 0


def _diff(options: argparse.Namespace) -> int:
    from pipeline.recipe_help.differ import differences, open_recipe

    if (options.b is None) == (options.against is None):
        raise RecipeError("recipe diff: give a second recipe, or --against with the name of a published one")
    if options.against is not None:
        return _diff_against(options)
    (kind_a, a), (kind_b, b) = open_recipe(options.a), open_recipe(options.b)
    if kind_a != kind_b:
        raise RecipeError(
            f"{options.a} is a {kind_a} recipe and {options.b} a {kind_b} recipe: give two of a kind"
        )
    found = differences(a, b)
    if options.json:
        print_json(
            {"a": options.a, "b": options.b, "differences": [asdict(difference) for difference in found]}
        )
        return 0
    for difference in found:
        print(visible(_shown(difference)))
    if not found:
        print("no difference")
    return 0


def _shown(difference: RecipeDifference) -> str:
    from pipeline.recipe_help.keys import value_text

    shown = ("not given" if value is None else value_text(value) for value in (difference.a, difference.b))
    what = "the order differs: " if difference.is_order else ""
    return f"{difference.key}: {what}{' → '.join(shown)}"


def _diff_against(options: argparse.Namespace) -> int:
    from pipeline.recipe_help.differ import changes_of, open_recipe, steps_of
    from pipeline.recipe_help.named import published

    kind, recipe = open_recipe(options.a)
    if kind != "data":
        raise RecipeError(f"{options.a} is a training recipe, and {options.against} is a data recipe")
    changed, original = changes_of(options.against, recipe), published(options.against)
    departures = [step for step in original.steps if step.here != "same"]
    if options.json:
        told = {
            "differences": [asdict(each) | {"steps": steps_of(options.against, each)} for each in changed],
            "departures": [asdict(each) for each in departures],
        }
        print_json({"file": options.a, "against": options.against, **told})
        return 0
    print(visible(f"{options.a} beside `sluice recipe new {options.against}`:"))
    for difference in changed:
        steps = ", ".join(steps_of(options.against, difference)) or "none of its steps"
        print(visible(f"  {_shown(difference)}  [{steps}]"))
    print(
        "  no difference"
        if not changed
        else "  In brackets: the published recipe's steps that depend on the key."
    )
    print(f"\nWhat that recipe is not the same in as {original.title} ({original.sources}):")
    for step in departures:
        print(visible(f"  {step.step}, {step.here}: {step.original}. Here: {step.reason}."))
    return 0


def _schema(options: argparse.Namespace) -> int:
    import json

    from pipeline.recipe_help.schema import recipe_schema

    schema = recipe_schema(options.kind)
    if options.to is None:
        sys.stdout.write(
            json.dumps(schema, indent=2, ensure_ascii=not speaks_unicode(sys.stdout.encoding)) + "\n"
        )
        return 0
    try:
        Path(options.to).write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"--to {options.to} cannot be written: {error}") from error
    if options.json:
        print_json({"kind": options.kind, "file": options.to})
    else:
        print(
            f"Wrote {options.to}. As the first line of a recipe beside it: #:schema ./{Path(options.to).name}"
        )
    return 0
