"""Holding an OUT: one run, purge or training commit at a time writes its index and its store.

On disk it is a lock (flock) on the folder itself, freed by the holder's death, with no file left behind. In
S3 it is a lease: an object written by conditional put, renewed while the holder lives and taken over once its
age (by the server's clock) passes LEASE_SECONDS. The holder calls `check` before it publishes: one whose
lease ran out, because it was suspended or cut off, publishes nothing. This is fencing by time: a taker waits
for the whole lease, a holder stops at three quarters of it, and the quarter between them covers a publication
that had begun and the drift of clocks."""

from __future__ import annotations

import fcntl
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lineage.storage import objects
from lineage.storage.durable import make_folder
from lineage.storage.errors import StorageError
from lineage.storage.folder import Folder

LEASE_FILE: Final = "work/lease.json"
LEASE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
_SHOWN_COMMAND: Final = 200
"""Characters of a holder's command, as a message has it."""
_RELEASE_PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between the tries to give a lease back."""


class HeldError(StorageError):
    """Another process holds the folder, or held it last; the message names it and says what to do."""


class Hold:
    """The right to write an OUT. On disk it lasts as long as the process."""

    def check(self) -> None:
        """HeldError unless the right still stands: call it before each act that publishes."""

    def renew(self) -> None:
        """Renew the right now. It is renewed regularly without this call."""


def can_be_held(folder: Folder) -> bool:
    """Whether `hold` can hold `folder`: on disk and in S3."""
    return not folder.is_remote or objects.is_s3(folder.url)


@contextmanager
def hold(
    folder: Folder,
    what: str,
    wait_seconds: float = 0.0,
    lease_seconds: float = LEASE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Hold]:
    """Hold `folder` (made if it is not there) while the block runs; `what` names the holder to others, e.g.
    "sluice purge".

    HeldError if another holds it for all of `wait_seconds`. Two holds in one process exclude each other too.
    `clock` is what a lease runs out by, in seconds."""
    if not folder.is_remote:
        with _locked(folder, wait_seconds):
            yield Hold()
    elif objects.is_s3(folder.url):
        lease = _take_lease(folder, what, wait_seconds, lease_seconds, clock)
        try:
            yield lease
        finally:
            lease.release()
    else:
        raise StorageError(f"{folder.url} cannot hold an output: name a folder on disk or in s3://")


@contextmanager
def _locked(folder: Folder, wait_seconds: float) -> Iterator[None]:
    try:
        make_folder(folder.url, folder.url)
    except OSError as error:
        raise StorageError(
            f"{folder.url} cannot be a folder ({error.strerror}): name another output"
        ) from error
    descriptor = os.open(folder.url, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + wait_seconds
        while not try_lock(descriptor, folder.url):
            if time.monotonic() >= deadline:
                raise HeldError(f"{folder.url} is held by {_local_holder(descriptor)}: wait for it")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def holder_of(folder: Folder) -> str | None:
    """Who holds `folder` now, for a message; None where nobody does, or a process that this machine does not
    list."""
    if not folder.is_remote:
        try:
            return _listed_holder(os.stat(folder.url).st_ino)
        except FileNotFoundError:
            return None
    if not objects.is_s3(folder.url):
        return None
    stored = objects.get(folder.at(LEASE_FILE))
    return None if stored is None or stored.age > LEASE_SECONDS else _named(stored)


def _local_holder(descriptor: int) -> str:
    """Who has a file's lock (flock), for a message: a nameless one where Linux does not list it, as of
    another machine, where the file system is shared."""
    return _listed_holder(os.fstat(descriptor).st_ino) or "another process (a run, purge or training commit)"


def _listed_holder(inode: int) -> str | None:
    """Who has the lock of a file, as Linux lists it."""
    try:
        # proc_locks(5): 1: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pid = next(int(line[4]) for line in lines if line[1] == "FLOCK" and line[5].endswith(f":{inode}"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(os.stat(f"/proc/{pid}").st_mtime))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    command = " ".join(word.decode("utf-8", "replace") for word in words if word)[:_SHOWN_COMMAND]
    return f"another process ({pid} on {socket.gethostname()}, which began {since}: {command})"


def try_lock(descriptor: int, place: str) -> bool:
    """Whether this descriptor has its file's lock (flock) now; `place` names the file. StorageError where the
    file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StorageError(
            f"{place} cannot be locked ({error.strerror}), so that two processes might write it at once:"
            " mount its file system with locks (Lustre with -o flock, NFS with its lock service, FUSE with"
            " flock), or name a folder of a local disk or of s3://"
        ) from error
    return True


def _take_lease(
    folder: Folder, what: str, wait_seconds: float, lease_seconds: float, clock: Callable[[], float]
) -> _Lease:
    lease = _Lease(folder.at(LEASE_FILE), what, lease_seconds, clock)
    deadline = time.monotonic() + wait_seconds
    while not lease.take():
        if time.monotonic() >= deadline:
            raise HeldError(
                f"{folder.url} is held by {lease.holder()}: wait for it. If it died, its lease ends "
                f"{lease_seconds:.0f} s after its last sign of life"
            )
        time.sleep(_POLL_SECONDS)
    lease.start()
    return lease


def _named(lease: objects.StoredObject) -> str:
    about = json.loads(lease.data)
    return f"{about['what']} on {about['host']} (process {about['pid']}, since {about['since']})"


class _Lease(Hold):
    """A lease in S3 and the thread that renews it."""

    def __init__(self, url: str, what: str, seconds: float, clock: Callable[[], float]) -> None:
        self._url, self._seconds, self._clock = url, seconds, clock
        self._about = {
            "holder": uuid.uuid4().hex,
            "what": what,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._about["since"] = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._renewals = 0
        self._etag = ""
        self._good_until = -math.inf
        self._renewing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="sluice-lease", daemon=True)

    def check(self) -> None:
        if self._clock() >= self._good_until:
            raise HeldError(
                f"the lease {self._url} of this process ran out and another may hold the folder: nothing more"
                " is published. Call the same command again"
            )

    def take(self) -> bool:
        """Take the lease if it is free, or if its holder has given no sign of life for its length."""
        asked = self._clock()
        etag = objects.put_new(self._url, self._body())
        if etag is None:
            stored = objects.get(self._url)
            if stored is None or stored.age <= self._seconds:
                return False
            asked = self._clock()
            etag = objects.put_over(self._url, self._body(), stored.etag)
        return self._holds(etag, asked)

    def holder(self) -> str:
        """Who holds it now, for a message."""
        stored = objects.get(self._url)
        return "another process until just now" if stored is None else _named(stored)

    def start(self) -> None:
        """Renew it from now on."""
        self._thread.start()

    def release(self) -> None:
        """Give it back, if it is still ours. A store that fails is asked again: what stays keeps the next
        call waiting for the rest of the lease. OSError if it fails for good."""
        self._stop.set()
        self._thread.join()
        for pause in (*_RELEASE_PAUSES, None):
            if self._clock() >= self._good_until:
                break
            try:
                objects.delete_exactly(self._url, self._etag)
                break
            except OSError:
                if pause is None:
                    raise
                time.sleep(pause)
        self._good_until = -math.inf

    def _body(self) -> bytes:
        # Each writing differs, so that each has its own ETag: a taker who looked before a renewal must fail
        # after it.
        return json.dumps({**self._about, "renewals": self._renewals}).encode()

    def _holds(self, etag: str | None, asked: float) -> bool:
        if etag is None:
            return False
        # Three quarters of the lease: the holder must stop well before another may begin.
        self._etag, self._good_until = etag, asked + 0.75 * self._seconds
        return True

    def renew(self) -> None:
        """HeldError if another has taken the lease; OSError if the store is out of reach."""
        with self._renewing:
            asked = self._clock()
            self._renewals += 1
            if not self._holds(objects.put_over(self._url, self._body(), self._etag), asked):
                self._good_until = -math.inf
                self.check()

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self._seconds / 6):
            try:
                self.renew()
            except HeldError:
                return
            except OSError:
                continue  # the store is out of reach: the next try may succeed, else `check` stops the holder
