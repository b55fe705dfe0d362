"""The commands: the module of each, and how a call of one is parsed."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from lineage.recipe import expanded_path

PATHS = frozenset({
    "out", "outs", "recipe", "recipes", "a", "b", "to", "from_output", "scan", "file", "warc", "against", "control",
    "tokenizer", "token_file", "runs", "weights", "losses", "timeline", "test_weights", "test_losses", "folder", "csv",
    "csv_safe",
})  # fmt: skip
"""Options and arguments, by the names under which they are parsed, that are paths or URLs."""

_ARGUMENTS = ("out", "outs", "recipe", "recipes", "a", "b")
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "pipeline.cli.demo",
        "the whole way in a few minutes: crawl, pipeline, training, trace, purge, proof",
    ),
    "run": ("pipeline.cli.corpus.run", "the data pipeline of a recipe, resumable"),
    "tune": ("pipeline.cli.corpus.tune", "what other thresholds would have kept, lost and gained"),
    "recipe": (
        "pipeline.cli.corpus.recipe",
        "the keys of recipes, a file to start from, a check, a comparison",
    ),
    "classifier": (
        "pipeline.cli.corpus.classifier",
        "precision and recall of a classifier on labelled texts",
    ),
    "explain": ("pipeline.cli.corpus.explain", "every step and rule on one page"),
    "report": ("pipeline.cli.output.report", "a finished run as one self-contained HTML page"),
    "verify": ("pipeline.cli.output.verify", "recompute every checksum and balance of an output"),
    "trace": ("pipeline.cli.output.trace", "from crawl record to training step, in every direction"),
    "lineage": ("pipeline.cli.output.lineage", "SQL over the lineage store, read-only; or its page"),
    "page": (
        "pipeline.cli.output.page",
        "the lineage page: documents, corpus, runs, purges with a plan and a proof",
    ),
    "scan": ("pipeline.cli.output.scan", "find documents that contain given texts, with the evidence"),
    "purge": ("pipeline.cli.output.purge", "take documents out again, and prove it"),
    "tokenizer": ("pipeline.cli.output.tokenizer", "train a tokenizer from a run's clean texts"),
    "train": ("pipeline.cli.training.train", "the training run of a recipe, resumable"),
    "train why": ("pipeline.cli.training.why", "a training step again: loss by document, data or hardware"),
    "train goodput": ("pipeline.cli.training.goodput", "what share of a run's wall time was useful steps"),
    "train diagnose": (
        "pipeline.cli.training.diagnose",
        "the recorders of all ranks: who is missing, who is slow",
    ),
    "certify": (
        "pipeline.cli.training.certify",
        "the certificate that a model is without what was purged, and its check",
    ),
    "export": ("pipeline.cli.output.export", "a corpus for other tools, or a checkpoint as safetensors"),
    "plan": (
        "pipeline.cli.training.plan",
        "memory, communication, bubble, MFU and cadence of a training recipe",
    ),
    "mix": ("pipeline.cli.training.mix", "mixing-weight ablations"),
    "submit": ("pipeline.cli.submit", "the same work as a Ray job on a cluster"),
    "jobs": ("pipeline.cli.jobs", "jobs on a cluster: list, logs, stop"),
    "completion": ("pipeline.cli.completion", "what the Tab key completes, for bash and zsh"),
}


def near(name: str) -> str:
    """The command that is most like `name`, as a question; nothing where none is."""
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"; did you mean `sluice {close[0]}`?" if close else ""


def split_call(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The command that a call names, in one word or in two, and what stands behind it."""
    of_two = " ".join(argv[:2])
    return (of_two, argv[2:]) if of_two in COMMANDS else (argv[0], argv[1:])


def overview() -> str:
    """All commands, each in a line."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "usage: sluice COMMAND …\n\ncommands (each teaches itself: sluice COMMAND --help):\n" + "\n".join(
        lines
    )


def parse_command(name: str, argv: Sequence[str]) -> argparse.Namespace:
    """The options of a call of the command `name`; SystemExit where it is wrong, as argparse does. Options
    may stand between positional arguments, but where a command takes another one's call, whose options are
    its own."""
    module = importlib.import_module(COMMANDS[name][0])
    parser = argparse.ArgumentParser(
        prog=f"sluice {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    if any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in parser._actions):
        return _with_paths(parser.parse_args(argv))
    return _with_paths(parser.parse_intermixed_args(argv))


def _with_paths(options: argparse.Namespace) -> argparse.Namespace:
    """The options with their paths as a shell has them, which leaves `--to=~/x` and what is quoted as it is;
    `expanded` has each that changed, by what was given. RecipeError as of `expanded_path`."""
    options.expanded = {}
    for name in PATHS & vars(options).keys():
        given = getattr(options, name)
        if isinstance(given, str):
            setattr(options, name, _expanded(given, name, options))
        elif isinstance(given, list):
            setattr(options, name, [_expanded(one, name, options) for one in given])
    return options


def _expanded(given: str, name: str, options: argparse.Namespace) -> str:
    option = {"from_output": "--from", "scan": "--from"}.get(name, f"--{name.replace('_', '-')}")
    path = expanded_path(given, name.upper() if name in _ARGUMENTS else option)
    if path != given:
        options.expanded[given] = path
    return path
