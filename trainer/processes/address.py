"""Starting Ray or joining it: a Ray of our own on loopback alone, a cluster at an address where somebody answers.

A Ray node runs what anybody sends it who reaches its ports, and by itself it opens them to the whole network."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

_SWITCH: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Off, a node's address is 127.0.0.1 (Ray's default on Windows and macOS). Ray has no other way to ask for it: the
address itself, given to `ray.init`, it turns into the machine's outer one (ray 2.60, `resolve_ip_for_localhost`)."""

_PATIENCE_SECONDS: Final = 10.0
_log = logging.getLogger(__name__)


class RayStartError(RuntimeError):
    """A Ray of our own did not come up, twice; the message says what Ray said last, and what to do."""


def start_or_join(address: str, **options: Any) -> None:
    """`ray.init` for "local", a Ray of our own, or for the cluster at `address` (see `reaching`).

    On a machine under load a start can exceed the time that Ray grants its own servers: it is tried once more, then it
    is a RayStartError. ConnectionError at once where nobody answers at `address`, ValueError where it is no address."""
    import ray

    with reaching(address):
        if address != "local":
            ray.init(address=address, **options)
            return
        first = _start(options)
        if first is None:
            return
        _log.warning("Ray did not start and is started once more: %s", _in_a_line(first))
        last = _start(options)
        if last is not None:
            raise RayStartError(
                f"Ray did not start on this machine, twice: {_in_a_line(last)}\n"
                f"Its logs are the newest session under {os.environ.get('RAY_TMPDIR') or tempfile.gettempdir()}/ray; "
                "call again when the machine is less busy or has more memory free"
            ) from last


def _start(options: Mapping[str, Any]) -> Exception | None:
    """Start a Ray of our own; what went wrong where it did not come up. Nothing of it is left then."""
    import ray

    before = _rays_children()
    try:
        ray.init(address="local", **options)
    except (ValueError, TypeError):
        raise  # an option that Ray does not take: another try gives the same
    except Exception as error:  # noqa: BLE001 - Ray raises Exception itself where its servers do not come up
        ray.shutdown()
        # Ray ends its servers when this process ends; until then they would take the next start's processors.
        for pid in _rays_children() - before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        return error
    return None


def _rays_children() -> set[int]:
    """The processes of Ray that this one has started and that still run."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if _is_rays(pid)}


def _is_rays(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"/ray/" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def check_answers(address: str) -> None:
    """ConnectionError at once if nobody listens at "host:port", where Ray would go on trying for two minutes. Any other
    address ("auto", a session's name) is Ray's to judge."""
    host, port = _host_and_port(address.removeprefix("ray://"))
    if not host:
        return
    try:
        _knock(host, port)
    except (OSError, OverflowError) as error:
        raise ConnectionError(str(error)) from error


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """`ray.init` in the block starts a Ray of our own ("local"), which listens on loopback, or goes to the one at
    `address`, also where that listens on loopback alone. ConnectionError as `check_answers`."""
    check_answers(address)
    with on_loopback() if address == "local" or _is_on_loopback_alone(address) else nullcontext():
        yield


def _is_on_loopback_alone(address: str) -> bool:
    """Whether nobody answers at this machine's outer address. Ray goes there when it is told 127.0.0.1, and tries for
    minutes."""
    host, port = _host_and_port(address)
    if host not in ("127.0.0.1", "localhost", "::1"):
        return False
    from ray._private.services import get_node_ip_address

    try:
        _knock(get_node_ip_address(), port)
    except OSError:
        return True
    return False


def _host_and_port(address: str) -> tuple[str, int]:
    """Both, or an empty host where `address` is nothing of the kind."""
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else ("", 0)


def _knock(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=_PATIENCE_SECONDS).close()


@contextmanager
def on_loopback() -> Iterator[None]:
    """What `ray.init` starts in the block listens on 127.0.0.1. Not for a cluster: no other machine can join."""
    from ray._private import ray_constants

    environment, constant = os.environ.get(_SWITCH), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_SWITCH], ray_constants.ENABLE_RAY_CLUSTER = "0", False  # for what is started, and for this process
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if environment is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = environment
