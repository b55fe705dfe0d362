"""Pieces of work in processes forked from this one, so many at once: what all of them import is imported
once.

    python -m trainer.mix.child PARENT NUM_PARALLEL < WORK

WORK is a JSON list of pieces (`ChildWork`); each is `main(arguments)` of a module. PARENT is the starter's
process id. The answer is a line of JSON for each piece as it ends: name, exit code, and the end of what it
printed. SIGTERM is passed on to those that run, which save and end. The kernel kills this process when the
thread that started it ends, and the forked ones when this one does: so an ablation that is killed leaves no
run behind. Its checkpoints stand, and the next start goes on from them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
"""prctl(2)."""
_SAID_BYTES: Final = 8_000
"""Of what a piece printed, from its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildWork:
    """What a process does: `main(arguments)` of `module`, with `stdin` to read. `preload`: further modules
    that `main` imports on its way."""

    name: str
    module: str
    arguments: list[str]
    stdin: str
    preload: list[str]


@dataclass(frozen=True, slots=True)
class _RunningChild:
    piece: ChildWork
    log: IO[bytes]
    slot: int


def die_with(parent: int) -> None:
    """Be killed when the thread of `parent` that started this process ends; at once if it has ended already.
    Linux only: elsewhere a run outlives a parent that was killed, and is fenced out by the next start."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def serve(work: list[ChildWork], num_parallel: int) -> ChildWork | None:
    """Carry the pieces out. Comes back twice: in each forked process with its piece, at last here with
    None."""
    for module in dict.fromkeys(name for piece in work for name in piece.preload):
        with contextlib.suppress(ModuleNotFoundError):  # who needs it says so
            importlib.import_module(module)
    for module in dict.fromkeys(piece.module for piece in work):
        importlib.import_module(module)
    gc.freeze()  # what is shared with the forked processes is not written to
    waiting, running = list(work), dict[int, _RunningChild]()
    signal.signal(signal.SIGTERM, _stop)
    try:
        while waiting or running:
            while waiting and len(running) < num_parallel:
                slot = min(set(range(num_parallel)) - {one.slot for one in running.values()})
                begun = _RunningChild(waiting.pop(0), tempfile.TemporaryFile(), slot)  # noqa: SIM115 - as long as it runs
                server = os.getpid()
                signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))  # one that is forked is known of
                pid = os.fork()
                if pid == 0:
                    running.clear()  # they are not this process's to end
                    _begin(begun, server)
                    return begun.piece
                running[pid] = begun
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
            pid, status = os.wait()
            ended = running.pop(pid)
            print(json.dumps(_answer(ended, os.waitstatus_to_exitcode(status))), flush=True)
    finally:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        for pid in running:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return None


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _begin(one: _RunningChild, server: int) -> None:
    """Make the forked process what a started one would be: its own session, streams, place and way to end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    die_with(server)
    os.setsid()
    asked = tempfile.TemporaryFile()  # noqa: SIM115 - it is stdin from now on
    asked.write(one.piece.stdin.encode())
    asked.seek(0)
    os.dup2(asked.fileno(), 0)
    os.dup2(one.log.fileno(), 1)
    os.dup2(one.log.fileno(), 2)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as Python opens it
    sys.argv = [one.piece.module, *one.piece.arguments]
    os.environ["LOCAL_RANK"] = str(one.slot)


def _carry_out(piece: ChildWork) -> int:
    """The exit code of a piece in its own process."""
    try:
        return int(importlib.import_module(piece.module).main(piece.arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - as Python itself ends a process, whatever was raised
        traceback.print_exc()
        return 1


def _answer(ended: _RunningChild, code: int) -> dict[str, object]:
    with ended.log as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(size - _SAID_BYTES, 0))
        said = log.read().decode(errors="replace").strip()
    return {"name": ended.piece.name, "code": code, "said": said}


if __name__ == "__main__":
    # Before any import that takes seconds: the parent may die meanwhile.
    die_with(int(sys.argv[1]))
    mine = serve([ChildWork(**piece) for piece in json.load(sys.stdin)], int(sys.argv[2]))
    if mine is None:
        sys.exit(0)
    code = _carry_out(mine)
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does at its end: writers finish what they have
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
