"""Extraction in a process of its own, for pages that may hang or kill the process that looks at them, and for every
payload that is converted.

`IsolatedExtraction` keeps one child (`python -m stages.html.extraction_child`) and talks to it over pipes,
which costs half a millisecond a page. The child runs the same function, so a page's text is the same as in
the caller's own process.

No clock of Python's reaches an extractor's native code, so a page on which that does not come back would end
a run, or a call of `sluice explain`. Every such page that is known of is rejected by a bound, and what no
bound knows of grows with the page: so `extract_or_isolate` has a child look at large pages, and the kernel
ends it there."""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import IO, Final

from stages.converters.converter import Converted, Converter, Refused
from stages.fault import Fault
from stages.html.extraction import BrokenPatchError, Extractor, Failure, converted, extract

_LENGTH: Final = struct.Struct("<Q")
_GRACE_SECONDS: Final = 10.0
_STALLED_TIMES: Final = 10
"""A child that takes no processor time is given up after so many times as much time on the clock."""
_MEMORY_BYTES: Final = 4 << 30
_SCHEDULED: Final = 2
"""CPUCLOCK_SCHED of Linux (posix-timers_types.h)."""
_MOST_TAGS_HERE: Final = 10_000
_MOST_CHARS_HERE: Final = 2_000_000
"""A page with no more `<` and characters is looked at in the caller's own process: were its cost to grow with
the square of its tags, as it did with the options of a list, it would be seconds."""


_Outcome = str | Converted | Refused | Failure | Fault
_MADE_OF: Final[dict[bytes, type[Fault | Converted | Refused]]] = {
    b"!": Fault,
    b"*": Converted,
    b"?": Refused,
}


def processor_seconds() -> float:
    """Processor seconds of this process, and of its children for what they answered."""
    return time.process_time() + _answered.seconds


class _Answered:
    """The processor seconds that children took for their answers."""

    seconds = 0.0


_answered: Final = _Answered()


class IsolatedExtraction:
    """`extract`, survived: a child that dies on a page, for lack of memory too, is replaced and the page
    tried once more; one that gives no answer in the processor time of two tries and 10 s is ended by the
    kernel, in native code too. BrokenPatchError as `extract` raises it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._taken = 0.0

    def __call__(self, html: str, extractor: Extractor) -> str | Failure | Fault:
        found = self._twice(html.encode("utf-8", "surrogatepass"), extractor)
        assert not isinstance(found, (Converted, Refused))
        return found

    def converted(self, payload: bytes, converter: Converter) -> Converted | Refused | Failure | Fault:
        """`stages.html.extraction.converted`, survived."""
        found = self._twice(payload, converter)
        assert not isinstance(found, str)
        return found

    def _twice(self, content: bytes, asked: Extractor | Converter) -> _Outcome:
        for _ in range(2):
            answer = self._ask(content, asked)
            if answer is not Failure.CRASHED:
                return answer
        return Failure.CRASHED

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child, self._taken = None, 0.0

    def _ask(self, content: bytes, asked: Extractor | Converter) -> _Outcome:
        child = self._child = self._child or _start()
        assert child.stdin is not None and child.stdout is not None
        most_seconds = 2 * asked.timeout_seconds + _GRACE_SECONDS
        deadline = time.monotonic() + _STALLED_TIMES * most_seconds
        try:
            _write(child.stdin, json.dumps((most_seconds, type(asked).__name__, asdict(asked))).encode())
            _write(child.stdin, content)
            answer = _read_until(child.stdout, deadline)
            taken, self._taken = self._taken, _seconds_of(child.pid)
            _answered.seconds += max(self._taken - taken, 0.0)
        except (BrokenPipeError, EOFError):
            ended_by_clock = child.wait() == -signal.SIGPROF
            self.close()
            return Failure.TIMEOUT if ended_by_clock else Failure.CRASHED
        except TimeoutError:
            self.close()
            return Failure.TIMEOUT
        return _outcome_of(answer)


def extract_or_isolate(html: str, num_tags: int, extractor: Extractor) -> str | Failure | Fault:
    """`extract`, in a child for a large page; `num_tags` counts its `<`. A page for which this process has
    too little memory is tried again in a child. What else a process holds has no say in what becomes of a
    page: in a child that holds nothing, it is the page's own fault."""
    if len(html) > _MOST_CHARS_HERE or num_tags > _MOST_TAGS_HERE:
        return _large_pages(os.getpid())(html, extractor)
    try:
        return extract(html, extractor, num_tags)
    except MemoryError:
        child = IsolatedExtraction()
        try:
            return child(html, extractor)
        finally:
            child.close()


def converted_in_child(payload: bytes, converter: Converter) -> Converted | Refused | Failure | Fault:
    """`stages.html.extraction.converted` in this process's child."""
    return _large_pages(os.getpid()).converted(payload, converter)


class _OneAtATime:
    """A child for all threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child = IsolatedExtraction()
        atexit.register(self._child.close)

    def __call__(self, html: str, extractor: Extractor) -> str | Failure | Fault:
        with self._lock:
            return self._child(html, extractor)

    def converted(self, payload: bytes, converter: Converter) -> Converted | Refused | Failure | Fault:
        with self._lock:
            return self._child.converted(payload, converter)


@functools.cache
def _large_pages(_pid: int) -> _OneAtATime:
    """A process's child for large pages and for what is converted: a process that was forked has its own."""
    return _OneAtATime()


def _seconds_of(pid: int) -> float:
    """Processor seconds of another process, by its clock (clock_getcpuclockid(3)); 0 where there is none."""
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError:
        return 0.0


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
    """One message; TimeoutError if none has begun by the deadline (its length is written with its first
    byte)."""
    ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))
    if not ready:
        raise TimeoutError
    return _read(pipe)


def serve() -> None:
    """The child's life: a page in, its text or failure out, until the caller is gone."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(
        sys.stderr.fileno(), sys.stdout.fileno()
    )  # what a library prints must not get between the answers
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    pages = sys.stdin.buffer
    while True:
        try:
            most_seconds, kind, asked = json.loads(_read(pages))
            content = _read(pages)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, most_seconds)  # there is no handler: SIGPROF ends this process
        try:
            outcome: _Outcome | BrokenPatchError = (
                converted(content, Converter(**asked))
                if kind == Converter.__name__
                else extract(content.decode("utf-8", "surrogatepass"), Extractor(**asked))
            )
        except BrokenPatchError as error:
            outcome = error
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, _answer(outcome))


def _answer(outcome: _Outcome | BrokenPatchError) -> bytes:
    """The child's message for an outcome of `extract` or `converted`. A MemoryError ends the child."""
    match outcome:
        case BrokenPatchError():
            return b"#" + str(outcome).encode("utf-8", "replace")
        case Failure():
            return b"-" + outcome.value.encode()
        case Fault():
            return b"!" + json.dumps(asdict(outcome)).encode()
        case Converted():
            return b"*" + json.dumps(asdict(outcome)).encode()
        case Refused():
            return b"?" + json.dumps(asdict(outcome)).encode()
    return b"+" + outcome.encode("utf-8", "surrogatepass")


def _outcome_of(answer: bytes) -> _Outcome:
    kind, rest = answer[:1], answer[1:]
    if kind == b"#":
        raise BrokenPatchError(rest.decode())
    if made := _MADE_OF.get(kind):
        return made(**json.loads(rest))
    text = rest.decode("utf-8", "surrogatepass")
    return text if kind == b"+" else Failure(text)


if __name__ == "__main__":
    serve()
