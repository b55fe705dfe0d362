"""The TCP connections of this process's groups, so that a collective that waits for a dead rank can be ended.

gloo has no way to give a collective up: `abort`, `shutdown` and `destroy_process_group` leave a rank blocked
that is no neighbour of the dead one, until its timeout. What frees it is to shut its connections down. Those
of the groups are told from others, as of Ray or an object store, by when they were opened: gloo connects all
pairs of a group where the group is made."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_Open = frozenset[tuple[int, str]]
"""File descriptors with the inode of their socket: a number alone may have been closed and given to another
since."""


class GroupSockets:
    """What was opened while groups were made. `cut` may be called from another thread."""

    def __init__(self) -> None:
        self._ours: _Open = frozenset()
        self._before: _Open | None = None

    @contextmanager
    def opening(self) -> Iterator[None]:
        """What is connected within the block belongs to groups; in the block this holds at once."""
        self._before = _sockets()
        try:
            yield
        finally:
            self._ours |= _sockets() - self._before
            self._before = None

    def cut(self) -> None:
        """Shut them down, both ways: whoever waits for one, here or at its other end, is freed with an
        error."""
        before = self._before
        now = _sockets()
        for fd, _ in now & self._ours if before is None else (now & self._ours) | (now - before):
            _shut_down(fd)

    def forget(self) -> None:
        """The groups are gone."""
        self._ours = frozenset()


def _sockets() -> _Open:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:"):
            found.add((int(name), target))
    return frozenset(found)


def _shut_down(fd: int) -> None:
    try:
        copy = socket.socket(fileno=os.dup(fd))
    except OSError:  # closed meanwhile
        return
    try:
        if copy.family in (socket.AF_INET, socket.AF_INET6) and not copy.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            copy.shutdown(socket.SHUT_RDWR)
    except OSError:  # not connected, or not any more
        pass
    finally:
        copy.close()
