"""`sluice COMMAND …`: finds the command's module, parses its arguments, turns errors into messages and exit
codes.

Only the module of the command that is called is imported: a point question must not wait for torch or Ray to
load.

Exit codes: 0 done; 1 a check or run failed (also: unknown id, run not finished); 2 the call or the recipe is
wrong; 130 and 143 ended by Ctrl-C and SIGTERM."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pipeline.cli.commands import COMMANDS, near, overview, parse_command, split_call
from pipeline.cli.errors import FailedError
from pipeline.terminal import prepare, visible, visible_lines

_OF_TRAINING = ("torch", "tensorboard", "safetensors")
"""What the extra `train` installs: data is made without it."""
_GOES_ON = "the same call again goes on from what is done"


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    prepare()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help"):
        try:
            print(overview(), flush=True)
        except BrokenPipeError as error:
            return _complain("", error, 1)
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"sluice {version('sluice')}")
        return 0
    name, rest = split_call(argv)
    if name not in COMMANDS:
        print(f"sluice: no command {visible(name)!r}{near(name)}\n\n{overview()}", file=sys.stderr)
        return 2
    return _run_command(name, rest)


def console() -> NoReturn:
    """What `sluice` and `python -m pipeline` do: `main`, and an end of the process with its exit code.

    What Python does last is to free a million objects one by one, which takes a small command a twentieth of its
    processor time. It is left to the system where nothing hangs on it: Ray and torch have ends of their own,
    and a thread that is not a daemon is waited for."""
    code = main()
    waited_for = [
        each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon
    ]
    if not waited_for and not {"ray", "torch"} & sys.modules.keys():
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):  # nobody reads any more: Python says so as it ends
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def _run_command(name: str, argv: Sequence[str]) -> int:
    from lineage.recipe import RecipeError
    from pipeline.cluster.environment import set_ray_environment

    # A start makes a million objects that stay: looking through them for dead cycles as often as Python does
    # by default costs a short command a tenth of its time.
    gc.set_threshold(50_000, 20, 20)
    set_ray_environment()  # several commands import modules that import ray before they join a session
    module = importlib.import_module(COMMANDS[name][0])
    try:
        with _ended_by_sigterm():
            return int(module.run(parse_command(name, argv)))
    except RecipeError as error:
        return _complain(name, error, 2)
    except (FailedError, ValueError, LookupError, OSError, RuntimeError) as error:
        if os.environ.get("SLUICE_TRACEBACK"):
            raise
        return _complain(name, _purged_meanwhile(error) or error, 1)
    except ModuleNotFoundError as error:
        if is_compiled(error.name):
            return _complain(name, f"{error.name} is not compiled: run `make` in Sluice's checkout first", 2)
        if error.name not in _OF_TRAINING:
            raise
        return _complain(name, f"it needs {error.name}: in Sluice's checkout, pip install '.[train]'", 2)
    except Exception as error:
        if not _is_of_a_store(error) or os.environ.get("SLUICE_TRACEBACK"):
            raise
        return _complain(
            name,
            f"the store fails ({type(error).__name__}): {_one_line(error)}. The same call again"
            " continues when it is well; SLUICE_TRACEBACK=1 shows where it failed",
            1,
        )
    except _Terminated:
        return _complain(name, f"ended by SIGTERM; {_GOES_ON}", 128 + signal.SIGTERM)
    except KeyboardInterrupt:
        return _complain(name, f"interrupted; {_GOES_ON}", 128 + signal.SIGINT)


def _purged_meanwhile(error: Exception) -> str | None:
    """What to say in place of the error where a purge has deleted the file that it names."""
    from lineage.index.output_index import purged_meanwhile

    if isinstance(error, FileNotFoundError) and error.filename:
        with suppress(OSError, ValueError):  # an index that cannot be read says nothing of the file
            return purged_meanwhile(str(error.filename))
    return None


class _Terminated(KeyboardInterrupt):
    """SIGTERM came: a scheduler ends by it what a person ends by Ctrl-C."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, by way of what is cleaned up, unless the command has a handler of
    its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def is_compiled(module: str | None) -> bool:
    """Whether a module of ours that is not there is one that a checkout must compile first."""
    path = Path(__file__).parents[2].joinpath(*(module or "").split("."))
    return path.with_suffix(".pyx").is_file()


def _is_of_a_store(error: Exception) -> bool:
    """Whether a library for stores and web servers raised it. (They have no class of error in common, and
    importing them all to name their classes would cost every command a second.)"""
    return type(error).__module__.split(".")[0] in (
        "botocore",
        "aiobotocore",
        "aiohttp",
        "s3fs",
        "gcsfs",
        "google",
        "azure",
        "adlfs",
        "urllib3",
        "_internal",
    )


def _one_line(error: Exception) -> str:
    """The message in a line, without colours, and without the query of a URL: it may hold a signature."""
    plain = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return re.sub(r"\b([a-z0-9]+://)(?:[^\s/@]*@)?([^\s?\"']+)(?:\?[^\s\"']*)?", r"\1\2", plain)


def _complain(name: str, error: object, code: int) -> int:
    from lineage.secrets import redacted
    from lineage.storage.errors import what_to_do

    text = redacted(str(error)) or type(error).__name__
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    lines = [f"sluice {name}: {text}", *getattr(error, "__notes__", ())]
    advice = what_to_do(text)
    if advice is not None and advice not in text:  # a process that was started has said it already
        lines.append(advice)
    print(visible_lines("\n".join(lines)), file=sys.stderr)
    return code


if __name__ == "__main__":
    console()
