"""Any command on a disk on which any call fails, is the last of its process, or is the last before a power cut:
faulty_disk.c, compiled, what it needs and what it records."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.checkout import ROOT


def compile_faulty_disk(folder: Path) -> Path:
    """The library to preload."""
    library = folder / "faulty_disk.so"
    source = ROOT / "tests" / "support" / "processes" / "faulty_disk.c"
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"], check=True
    )
    return library


class Ended(NamedTuple):
    """How a call of a command ended: its exit code, and all that it printed."""

    code: int
    said: str


class Commands:
    """Calls of commands, each in a process of its own, on a disk as `env` says."""

    def __init__(self, server: subprocess.Popen[str], prepare: tuple[str, ...]) -> None:
        self._server, self._prepare = server, prepare

    def call(
        self, *arguments: str, module: str = "pipeline.cli.main", env: Mapping[str, str] | None = None
    ) -> Ended:
        """`main(arguments)` of the module, that of `sluice` if none is named."""
        assert self._server.stdin is not None and self._server.stdout is not None
        call = {"module": module, "arguments": arguments, "env": dict(env or {}), "prepare": self._prepare}
        self._server.stdin.write(json.dumps(call) + "\n")
        self._server.stdin.flush()
        return Ended(**json.loads(self._server.stdout.readline()))


@contextmanager
def commands_on(library: Path | None, *prepare: str) -> Iterator[Commands]:
    """A server of commands, preloaded with the library if one is given; `prepare` as of
    tests.support.processes.forked_commands."""
    module = "tests.support.processes.forked_commands"
    own = {"OMP_NUM_THREADS": "1"} | ({} if library is None else {"LD_PRELOAD": str(library)})
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **own},
    ) as server:
        yield Commands(server, prepare)
        assert server.stdin is not None
        server.stdin.close()


ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EROFS)
KILLED: Final = -signal.SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at call `number` (from 0) of those that change files whose path begins with `under`: it fails
    with `error`, or the process dies before it (None). What fills a disk or makes it read-only lasts."""

    under: str
    number: int
    error: int | None = None

    def env(self, noted: Path | None = None, counter: Path | None = None) -> dict[str, str]:
        """The variables for a command. `noted` gets the call that it happened to, as `read_record` reads it;
        the calls of processes with the same `counter` are counted together."""
        error = "KILL" if self.error is None else str(self.error)
        env = {"DISK_UNDER": self.under, "DISK_FAIL_AT": str(self.number), "DISK_ERRNO": error}
        if self.error in (errno.ENOSPC, errno.EROFS):
            env["DISK_LASTING"] = "1"
        if noted is not None:
            env["DISK_FAILED"] = str(noted)
        if counter is not None:
            env["DISK_COUNTER"] = str(counter)
        return env


def assert_says_where(ended: Ended, top: str, error: int) -> None:
    """A command whose call below `top` failed with `error` ended well nevertheless, or says where, why and what to
    do in at most three lines behind its progress."""
    assert "Traceback" not in ended.said
    if ended.code == 0:  # nothing depended on the call, as if a folder was there already
        return
    lines = ended.said.splitlines()
    begins = max(number for number, line in enumerate(lines) if line.startswith("sluice"))
    said = "\n".join(lines[begins:])
    assert ended.code == 1 and top in said and os.strerror(error) in said, "place and reason"
    assert "same call again" in said and len(lines) - begins <= 3, "what to do"


class Act(NamedTuple):
    """A call that changed the disk: what it was, where, and the other path of a rename or link; of the sync
    of a file the name under which its content is kept."""

    kind: str
    path: str
    other: str


def num_calls(counter: Path) -> int:
    """How many calls $DISK_COUNTER has counted: those too that changed nothing, as of a folder that was
    there."""
    return int.from_bytes(counter.read_bytes(), sys.byteorder)


def read_record(path: Path) -> list[Act]:
    """The recorded acts, in order."""
    return [Act(*line.split("\t")) for line in path.read_text().splitlines()]


@dataclass(eq=False)
class _File:
    """A file: where its content lies as it was last synced, None if it never was."""

    content: Path | None


class _Folder(dict[str, "_File | _Folder"]):
    """A folder as processes see it; `synced` is what it held when it was last synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[str, _File | _Folder] = {}


class ModelDisk:
    """What a disk holds after a power cut, by the rules that fsync(2) gives and no more: a file has the
    content that was synced, or none; a folder the entries that were synced.

    With `keeps_names` the disk has brought every entry to itself, as a journal in order does, and still no
    content that was not synced."""

    def __init__(self, top: str, template: Path, kept: Path) -> None:
        """`template` is what `top` holds at the start; `kept` has what was synced."""
        self._top, self._kept, self._root = top, kept, _load(template)

    def apply(self, act: Act) -> None:
        """Let an act come to pass."""
        match act.kind:
            case "create":
                folder, name = self._place(act.path)
                folder[name] = _File(None)
            case "mkdir":
                folder, name = self._place(act.path)
                folder[name] = _Folder()
            case "rename":
                folder, name = self._place(act.path)
                target, new = self._place(act.other)
                target[new] = folder.pop(name)
            case "link":
                source, old = self._place(act.other)
                folder, name = self._place(act.path)
                folder[name] = source[old]
            case "unlink" | "rmdir":
                folder, name = self._place(act.path)
                del folder[name]
            case "sync":
                self._sync(act.path, act.other)

    def cut(self, target: Path, *, keeps_names: bool) -> None:
        """Write what is left after the power was cut here to a new folder."""
        _write(self._root, target, keeps_names)

    def left(self, *, keeps_names: bool) -> frozenset[tuple[str, Path | None]]:
        """What `cut` would write here: each file with where its content lies, and each folder with None."""
        return frozenset(_left(self._root, "", keeps_names))

    def _sync(self, path: str, kept: str) -> None:
        if path == self._top:
            self._root.synced = dict(self._root)
        elif path.startswith(f"{self._top}/"):
            folder, name = self._place(path)
            entry = folder[name]
            if isinstance(entry, _Folder):
                entry.synced = dict(entry)
            else:
                entry.content = self._kept / kept

    def _place(self, path: str) -> tuple[_Folder, str]:
        *folders, name = path.removeprefix(f"{self._top}/").split("/")
        at = self._root
        for each in folders:
            below = at[each]
            assert isinstance(below, _Folder), path
            at = below
        return at, name


def _load(path: Path) -> _Folder:
    folder = _Folder()
    for entry in path.iterdir():
        folder[entry.name] = _load(entry) if entry.is_dir() else _File(entry)
    folder.synced = dict(folder)
    return folder


def _left(folder: _Folder, under: str, keeps_names: bool) -> Iterator[tuple[str, Path | None]]:
    for name, entry in _entries(folder, keeps_names).items():
        if isinstance(entry, _Folder):
            yield f"{under}/{name}/", None
            yield from _left(entry, f"{under}/{name}", keeps_names)
        else:
            yield f"{under}/{name}", entry.content


def _entries(folder: _Folder, keeps_names: bool) -> dict[str, _File | _Folder]:
    return folder if keeps_names else folder.synced


def _write(folder: _Folder, target: Path, keeps_names: bool) -> None:
    target.mkdir()
    for name, entry in _entries(folder, keeps_names).items():
        if isinstance(entry, _Folder):
            _write(entry, target / name, keeps_names)
        elif entry.content is None:
            (target / name).touch()
        else:
            shutil.copyfile(entry.content, target / name)
