"""`sluice COMMAND …`: finds the command's module, parses its arguments, turns errors into messages and exit codes.

Only the module of the command that is called is imported: a point question must not wait for torch or Ray to load.

Exit codes: 0 done; 1 a check or run failed (also: unknown id, run not finished); 2 the call or the recipe is wrong.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence

from pipeline.terminal import prepare, visible, visible_lines

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("pipeline.cli.demo", "the whole way in a few minutes: crawl, pipeline, training, trace, purge, proof"),
    "run": ("pipeline.cli.run", "the data pipeline of a recipe, resumable"),
    "tune": ("pipeline.cli.tune", "what other thresholds would have kept, lost and gained"),
    "recipe": ("pipeline.cli.recipe", "the keys of recipes, a file to start from, a check, a comparison"),
    "explain": ("pipeline.cli.explain", "every step and rule on one page"),
    "report": ("pipeline.cli.report", "a finished run as one self-contained HTML page"),
    "verify": ("pipeline.cli.verify", "recompute every checksum and balance of an output"),
    "trace": ("pipeline.cli.trace", "from crawl record to training step, in every direction"),
    "lineage": ("pipeline.cli.lineage", "SQL over the lineage store, read-only; or its page"),
    "scan": ("pipeline.cli.scan", "find documents that contain given texts, with the evidence"),
    "purge": ("pipeline.cli.purge", "take documents out again, and prove it"),
    "tokenizer": ("pipeline.cli.tokenizer", "train a tokenizer from a run's clean texts"),
    "train": ("pipeline.cli.train", "the training run of a recipe, resumable"),
    "export": ("pipeline.cli.export", "a corpus for other tools, or a checkpoint as safetensors"),
    "plan": ("pipeline.cli.plan", "memory, communication, bubble, MFU and cadence of a training recipe"),
    "mix": ("pipeline.cli.mix", "mixing-weight ablations"),
    "submit": ("pipeline.cli.submit", "the same work as a Ray job on a cluster"),
    "jobs": ("pipeline.cli.jobs", "jobs on a cluster: list, logs, stop"),
}


class FailedError(Exception):
    """A check or run failed, or what was asked for is not there: exit code 1 with this message."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    prepare()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"sluice {version('sluice')}")
        return 0
    if argv[0] not in COMMANDS:
        print(f"sluice: no command {visible(argv[0])!r}{_near(argv[0])}\n\n{_overview()}", file=sys.stderr)
        return 2
    return _run_command(argv[0], argv[1:])


def _near(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"; did you mean `sluice {close[0]}`?" if close else ""


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "usage: sluice COMMAND …\n\ncommands (each teaches itself: sluice COMMAND --help):\n" + "\n".join(lines)


def _run_command(name: str, argv: Sequence[str]) -> int:
    from lineage.recipe import RecipeError
    from pipeline.cluster.environment import set_ray_environment

    set_ray_environment()  # several commands import modules that import ray before they join a session
    module = importlib.import_module(COMMANDS[name][0])
    options = parse_command(name, argv)
    try:
        return int(module.run(options))
    except RecipeError as error:
        return _complain(name, error, 2)
    except (FailedError, ValueError, LookupError, OSError, RuntimeError) as error:
        if os.environ.get("SLUICE_TRACEBACK"):
            raise
        return _complain(name, error, 1)
    except Exception as error:
        if not _is_of_a_store(error) or os.environ.get("SLUICE_TRACEBACK"):
            raise
        return _complain(
            name,
            f"the store fails ({type(error).__name__}): {_one_line(error)}. The same call again"
            " continues when it is well; SLUICE_TRACEBACK=1 shows where it failed",
            1,
        )
    except KeyboardInterrupt:
        return _complain(name, "interrupted; nothing is lost: the same call again continues", 130)


def parse_command(name: str, argv: Sequence[str]) -> argparse.Namespace:
    """The options of a call of the command `name`; SystemExit where it is wrong, as argparse does. Options may stand
    between positional arguments, but where a command takes another one's call, whose options are its own."""
    module = importlib.import_module(COMMANDS[name][0])
    parser = argparse.ArgumentParser(
        prog=f"sluice {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.configure(parser)
    if any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in parser._actions):
        return parser.parse_args(argv)
    return parser.parse_intermixed_args(argv)


def _is_of_a_store(error: Exception) -> bool:
    """Whether a library for stores and web servers raised it. (They have no class of error in common, and
    importing them all to name their classes would cost every command a second.)"""
    return type(error).__module__.split(".")[0] in (
        "botocore",
        "aiobotocore",
        "aiohttp",
        "s3fs",
        "urllib3",
        "_internal",
    )


def _one_line(error: Exception) -> str:
    """The message in a line, without colours, and without the query of a URL: it may hold a signature."""
    plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return re.sub(r"\b([a-z0-9]+://)(?:[^\s/@]*@)?([^\s?\"']+)(?:\?[^\s\"']*)?", r"\1\2", plain)


def _complain(name: str, error: object, code: int) -> int:
    from lineage.secrets import redacted

    text = redacted(str(error)) or type(error).__name__
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    lines = [f"sluice {name}: {text}", *getattr(error, "__notes__", ())]
    if "No space left on device" in text or "Disk quota exceeded" in text:
        lines.append("Free some room and make the same call again: it continues where this one stopped.")
    print(visible_lines("\n".join(lines)), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
