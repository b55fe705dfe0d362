"""Where Ray listens: a local Ray on loopback alone, a cluster at an address that answers.

A Ray node runs whatever reaches its ports, and by default it opens them to the whole network."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

from lineage.recipe import whole_number

_SWITCH: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Off, a node's address is 127.0.0.1 (Ray's default on Windows and macOS). Ray has no other setting for it:
the address itself, given to `ray.init`, it turns into the machine's outer one (ray 2.60,
`resolve_ip_for_localhost`)."""
_CONNECT_SECONDS: Final = 10.0


def check_answers(address: str) -> None:
    """ConnectionError at once if nothing listens at "host:port", where Ray would go on trying for two
    minutes. Ray judges any other address ("auto", a session's name)."""
    host, port = _host_and_port(address.removeprefix("ray://"))
    if not host:
        return
    try:
        _try_connection(host, port)
    except (OSError, OverflowError) as error:
        raise ConnectionError(str(error)) from error


@contextmanager
def reachable(address: str) -> Iterator[None]:
    """`ray.init` in the block starts a local Ray that listens on loopback, or reaches the cluster at
    `address`, also where that listens on loopback alone. ConnectionError as `check_answers`."""
    check_answers(address)
    with on_loopback() if address == "local" or _listens_on_loopback_alone(address) else nullcontext():
        yield


def _listens_on_loopback_alone(address: str) -> bool:
    """Whether nothing answers at this machine's outer address. Ray goes there when it is given 127.0.0.1, and
    tries for minutes."""
    host, port = _host_and_port(address)
    if host not in ("127.0.0.1", "localhost", "::1"):
        return False
    from ray._private.services import get_node_ip_address

    try:
        _try_connection(get_node_ip_address(), port)
    except OSError:
        return True
    return False


def _host_and_port(address: str) -> tuple[str, int]:
    """Both, or an empty host where `address` is nothing of the kind."""
    host, _, text = address.rpartition(":")
    port = whole_number(text)
    return (host.strip("[]"), port) if host and port is not None else ("", 0)


def _try_connection(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()


@contextmanager
def on_loopback() -> Iterator[None]:
    """What `ray.init` starts in the block listens on 127.0.0.1. Not for a cluster: no other machine can
    join."""
    from ray._private import ray_constants

    environment, constant = os.environ.get(_SWITCH), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_SWITCH], ray_constants.ENABLE_RAY_CLUSTER = (
        "0",
        False,
    )  # for what is started, and for this process
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if environment is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = environment
