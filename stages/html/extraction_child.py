"""Extraction in a process of its own, for pages that hang or kill the process that looks at them.

`IsolatedExtraction` keeps one child (`python -m stages.html.extraction_child`) and talks to it over pipes, which costs
half a millisecond a page. The child runs the same function, so a page's text is the same as in the caller's own
process."""

from __future__ import annotations

import json
import os
import resource
import select
import struct
import subprocess
import sys
import time
from dataclasses import asdict
from typing import IO, Final

from stages.fault import Fault
from stages.html.extraction import BrokenPatchError, Extractor, Failure, extract

_LENGTH: Final = struct.Struct("<Q")
_GRACE_SECONDS: Final = 10.0
_MEMORY_BYTES: Final = 4 << 30


class IsolatedExtraction:
    """`extract`, survived: a child that dies on a page, for lack of memory too, is replaced and the page tried once
    more; one that gives no answer in the time of two tries is killed. BrokenPatchError as `extract` raises it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, html: str, extractor: Extractor) -> str | Failure | Fault:
        for _ in range(2):
            answer = self._ask(html, extractor)
            if answer is not Failure.CRASHED:
                return answer
        return Failure.CRASHED

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def _ask(self, html: str, extractor: Extractor) -> str | Failure | Fault:
        child = self._child = self._child or _start()
        assert child.stdin is not None and child.stdout is not None
        deadline = time.monotonic() + 2 * extractor.timeout_seconds + _GRACE_SECONDS
        try:
            _write(child.stdin, json.dumps(asdict(extractor)).encode())
            _write(child.stdin, html.encode("utf-8", "surrogatepass"))
            answer = _read_until(child.stdout, deadline)
        except (BrokenPipeError, EOFError):
            self.close()
            return Failure.CRASHED
        except TimeoutError:
            self.close()
            return Failure.TIMEOUT
        return _outcome_of(answer)


def extract_or_isolate(html: str, extractor: Extractor) -> str | Failure | Fault:
    """`extract`; a page for which this process has too little memory is tried again in a child. What else a process
    holds has no say in what becomes of a page: in a child that holds nothing, it is the page's own fault."""
    try:
        return extract(html, extractor)
    except MemoryError:
        child = IsolatedExtraction()
        try:
            return child(html, extractor)
        finally:
            child.close()


def _start() -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-m", "stages.html.extraction_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _read_until(pipe: IO[bytes], deadline: float) -> bytes:
    """One message; TimeoutError if none has begun by the deadline (its length is written with its first byte)."""
    ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))
    if not ready:
        raise TimeoutError
    return _read(pipe)


def serve() -> None:
    """The child's life: a page in, its text or failure out, until the caller is gone."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not get between the answers
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    pages = sys.stdin.buffer
    while True:
        try:
            extractor = Extractor(**json.loads(_read(pages)))
            html = _read(pages).decode("utf-8", "surrogatepass")
        except EOFError:
            return
        try:
            outcome: str | Failure | Fault | BrokenPatchError = extract(html, extractor)
        except BrokenPatchError as error:
            outcome = error
        _write(answers, _answer(outcome))


def _answer(outcome: str | Failure | Fault | BrokenPatchError) -> bytes:
    """The child's message for an outcome of `extract`. A MemoryError ends the child."""
    match outcome:
        case BrokenPatchError():
            return b"#" + str(outcome).encode("utf-8", "replace")
        case Failure():
            return b"-" + outcome.value.encode()
        case Fault():
            return b"!" + json.dumps(asdict(outcome)).encode()
    return b"+" + outcome.encode("utf-8", "surrogatepass")


def _outcome_of(answer: bytes) -> str | Failure | Fault:
    kind, rest = answer[:1], answer[1:]
    if kind == b"#":
        raise BrokenPatchError(rest.decode())
    if kind == b"!":
        return Fault(**json.loads(rest))
    text = rest.decode("utf-8", "surrogatepass")
    return text if kind == b"+" else Failure(text)


if __name__ == "__main__":
    serve()
