"""Purges of copies of a small OUT, each by `sluice purge` in a process of its own, forked from one that has imported
all: under tests.support.processes.faulty_disk, whose variables a call sets for its process alone.

`python -m tests.support.processes.forked_purges < CALLS`: a line of JSON for each call, {"out", "doc", "env"}; gives a
line {"code", "said"} for each, as soon as it ended.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from typing import Any, NoReturn

import pipeline.cli.output.purge
import pipeline.inspect.hooks
from pipeline.cli.main import main
from tests.support.outputs.small_out import hooks


def purge(call: dict[str, Any], said: int) -> NoReturn:
    """Carry a call out in this process and end it."""
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.update(call["env"])
    arguments = ["purge", call["out"], "--doc", call["doc"], "--reason", "a test", "--by", "a test", "--apply"]
    code = 99
    try:
        code = main(arguments)
    finally:  # an exception that `main` lets through is a fault: its traceback is printed, and the server lives on
        if code == 99:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    pipeline.inspect.hooks.apply_hooks = hooks.apply_hooks
    pipeline.inspect.hooks.plan_hooks = lambda _out: hooks.plan_hooks()
    for line in sys.stdin:
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                purge(json.loads(line), said.fileno())
            _, status = os.waitpid(child, 0)
            said.seek(0)
            print(json.dumps({"code": os.waitstatus_to_exitcode(status), "said": said.read().decode()}), flush=True)


if __name__ == "__main__":
    serve()
