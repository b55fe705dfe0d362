"""The commands: the module of each, and how a call of one is parsed."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from lineage.recipe import expanded_path

PATHS = frozenset({
    "out", "outs", "recipe", "recipes", "a", "b", "to", "from_output", "scan", "file", "warc", "against", "control",
    "tokenizer", "token_file", "runs", "weights", "losses", "timeline", "test_weights", "test_losses", "folder", "csv",
    "csv_safe", "nsight", "place", "on", "shots_from", "text", "check", "statements",
    "robots",
})  # fmt: skip
"""Options and arguments, by the names under which they are parsed, that are paths or URLs."""

_ARGUMENTS = ("out", "outs", "recipe", "recipes", "a", "b")
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "pipeline.cli.demo",
        "all of Sluice in a few minutes: crawl, pipeline, training, trace, purge, proof",
    ),
    "run": ("pipeline.cli.corpus.run", "run the data pipeline of a recipe; resumable"),
    "tune": (
        "pipeline.cli.corpus.tune",
        "compare thresholds on a finished run: documents kept, lost and gained",
    ),
    "recipe": (
        "pipeline.cli.corpus.recipe",
        "list recipe keys; write, check or compare recipes",
    ),
    "classifier": (
        "pipeline.cli.corpus.classifier",
        "measure precision and recall of a classifier on labelled texts",
    ),
    "explain": ("pipeline.cli.corpus.explain", "show every step and rule for one document"),
    "report": ("pipeline.cli.output.report", "render a finished run as one self-contained HTML page"),
    "verify": ("pipeline.cli.output.verify", "recompute every checksum and count of an output"),
    "trace": ("pipeline.cli.output.trace", "trace a document from crawl record to training step, or back"),
    "lineage": (
        "pipeline.cli.output.lineage",
        "query the lineage store with SQL, read-only, or serve its page",
    ),
    "page": (
        "pipeline.cli.output.page",
        "serve the lineage page: documents, corpus, runs, purges",
    ),
    "scan": ("pipeline.cli.output.scan", "find documents that contain given texts, with evidence"),
    "purge": ("pipeline.cli.output.purge", "remove documents from an output, and prove it"),
    "tokenizer": ("pipeline.cli.output.tokenizer", "train a tokenizer on a run's clean texts"),
    "train": ("pipeline.cli.training.train", "run the training of a recipe; resumable"),
    "train why": (
        "pipeline.cli.training.why",
        "replay a training step bit for bit: data or hardware fault, loss by document",
    ),
    "train goodput": (
        "pipeline.cli.training.goodput",
        "measure the share of wall time spent on useful steps",
    ),
    "train diagnose": (
        "pipeline.cli.training.diagnose",
        "merge the recorders of all ranks: missing and slow ranks",
    ),
    "train profile": (
        "pipeline.cli.training.profile",
        "analyse the traces of all ranks: hidden and exposed communication, kernels, idle time",
    ),
    "eval": (
        "pipeline.cli.training.evaluate",
        "score a checkpoint or exported folder on texts or questions, seen and unseen in training",
    ),
    "certify": (
        "pipeline.cli.training.certify",
        "certify the removal of purged documents from a model, or check a certificate",
    ),
    "record": (
        "pipeline.cli.output.record",
        "fill in the EU's training summary, AB 2013 or Croissant from lineage",
    ),
    "rights": (
        "pipeline.cli.output.rights",
        "find documents that later robots.txt files deny, by host and signal",
    ),
    "commit": (
        "pipeline.cli.training.commit",
        "publish one hash over what a run has read: URLs, domains, texts",
    ),
    "prove": (
        "pipeline.cli.training.prove",
        "prove that a run has read a URL, domain or text, or has not",
    ),
    "export": (
        "pipeline.cli.output.export",
        "export a corpus for other tools, or a checkpoint as safetensors",
    ),
    "index": (
        "pipeline.cli.output.index",
        "write the columnar index of WARC files, which source.index reads",
    ),
    "sample": (
        "pipeline.cli.training.sample",
        "continue a prompt with a checkpoint, or a folder of safetensors",
    ),
    "plan": (
        "pipeline.cli.plan",
        "estimate what a data or training recipe costs: time, memory, money, with intervals",
    ),
    "mix": ("pipeline.cli.training.mix", "find mixing weights by ablation"),
    "submit": ("pipeline.cli.submit", "run a command as a Ray job on a cluster"),
    "jobs": ("pipeline.cli.jobs", "list, follow or stop jobs on a cluster"),
    "completion": ("pipeline.cli.completion", "print the completion script for bash or zsh"),
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
    return "usage: sluice COMMAND …\n\ncommands (details: sluice COMMAND --help):\n" + "\n".join(lines)


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
