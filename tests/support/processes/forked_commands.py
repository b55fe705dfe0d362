"""Calls of commands, each in a process of its own that is forked from one that has imported what they need: a
call that takes seconds to import takes none. Under tests.support.stores.faulty_disk, whose variables a call
sets for its process alone.

`python -m tests.support.processes.forked_commands < CALLS`: a line of JSON for each call, {"module",
"arguments", "env", "prepare"}, whose `module` has a `main`; gives a line {"code", "said"} for each, as soon
as it ended. `prepare` names functions, as "module:function", that are called before it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import IO, Any, NoReturn

_MOST_SECONDS = 900
"""A call that hangs is ended by SIGALRM."""


def carry_out(call: dict[str, Any], said: int, loaded: IO[str]) -> NoReturn:
    """Carry a call out in this process and end it; the names of the modules that are loaded by then go to
    `loaded`."""
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.update(call["env"])
    signal.alarm(_MOST_SECONDS)
    code = 99
    try:
        for function in call["prepare"]:
            module, _, name = function.partition(":")
            getattr(importlib.import_module(module), name)()
        code = int(importlib.import_module(call["module"]).main(call["arguments"]))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 2
    finally:  # an exception that `main` lets through is a fault: its traceback is printed, and the server lives on
        if code == 99:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        json.dump(sorted(sys.modules), loaded)
        loaded.flush()
        os._exit(code)


def load(names: list[str]) -> None:
    """Import what a call has imported: the next ones need not. What only that call could import is passed
    over, and what a library imports for itself: `_asyncio` before `asyncio` breaks both."""
    for name in names:
        if name not in sys.modules and not name.startswith(("_", "sluice_")):
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001 - a module may ask for anything; each call imports for itself too
                continue


def serve() -> None:
    known: set[str] = set()
    for line in sys.stdin:
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile("w+") as loaded:
            child = os.fork()
            if child == 0:
                carry_out(json.loads(line), said.fileno(), loaded)
            _, status = os.waitpid(child, 0)
            said.seek(0)
            code, text = os.waitstatus_to_exitcode(status), said.read().decode(errors="replace")
            print(json.dumps({"code": code, "said": text}), flush=True)
            loaded.seek(0)
            names = set(json.loads(loaded.read() or "[]"))
            load(sorted(names - known))
            known |= names


if __name__ == "__main__":
    serve()
