"""The one place that starts Ray or joins it: a local Ray on loopback alone, or the cluster at an address."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TextIO, cast

from lineage.recipe import IN_PROCESS, RecipeError
from pipeline.cluster.address import reachable
from pipeline.cluster.capacity import Nodes, Reservation, ResourceError, check_capacity
from pipeline.cluster.environment import set_ray_environment
from pipeline.cluster.local_services import (
    without_cluster_actors,
    without_cluster_processes,
    without_driver_lines,
)
from pipeline.recipe.tables import RayTable

_log = logging.getLogger(__name__)

_MOST_SOCKET_BYTES: Final = 107
"""Of a socket's path: `sun_path` has 108 with the zero behind it (unix(7))."""
_SOCKET: Final = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.1"
"""The longest path of a socket that Ray makes below its folder for temporary files."""
_OTHER_NAME: Final = "ray-"
_OTHER_NAME_BYTES: Final = len(f"/{_OTHER_NAME}") + 8
"""Of the folder around Ray's where the usual name is taken: mkdtemp puts eight characters behind the
prefix."""
_SHORT_FOLDER: Final = "/tmp"


class RayStartError(RuntimeError):
    """A local Ray did not come up, twice; the message says what Ray said last, and what to do."""


def as_connected(ray: RayTable) -> RayTable:
    """The table of an output's own recipe as a command over this output takes it: one that was submitted
    works on the cluster of its job, where this process is connected already, though the run had no Ray."""
    connected = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    return replace(ray, address="auto") if connected else ray


@contextmanager
def units_session(ray: RayTable) -> Iterator[None]:
    """Units of work can be carried out in the block: on Ray (see `ray_session`), or in this process, without
    it."""
    if ray.in_process:
        yield
    else:
        with ray_session(ray.address, ray.num_cpus):
            yield


@contextmanager
def ray_session(address: str, num_cpus: int | None = None, training_cpus: int = 0) -> Iterator[None]:
    """Ray is connected for the time of the block: a local one (`address` "local") with `num_cpus` processors
    (None: all), or the cluster at `address`. A process that is connected already stays so and uses that one.

    `training_cpus` are the processors that the workers of a training run reserve together: a local Ray has at
    least these. ResourceError where no cluster answers, RecipeError where `address` is none or `num_cpus` is
    too low, RayStartError where a local Ray does not come up."""
    if address == IN_PROCESS:
        raise RecipeError(
            f'ray.address = {IN_PROCESS!r}: this needs Ray; name "local", "auto" or "host:port"'
        )
    set_ray_environment()
    import ray

    if ray.is_initialized():
        with _ray_prints_to_log():
            yield
        return
    options: dict[str, object] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
    }
    if address == "local":
        options |= {
            "num_cpus": _local_cpus(num_cpus, training_cpus),
            "include_dashboard": False,
            "object_store_memory": _object_store_bytes(),
        }
    own_folder: contextlib.AbstractContextManager[dict[str, str]] = contextlib.nullcontext({})
    token = token_without_home() if address == "local" else contextlib.nullcontext()
    with token, folder_for_sockets() if address == "local" else own_folder as folder:
        try:
            with _own_sigterm():
                start_or_join(address, options | folder)
        except ConnectionError as error:
            raise ResourceError(
                f"ray.address = {address!r}: no Ray cluster answers there ({error})"
            ) from error
        except ValueError as error:
            raise RecipeError(
                f'ray.address = {address!r}: expected "local", "auto" or "host:port" ({error})'
            ) from error
        with _ray_prints_to_log():
            try:
                with without_cluster_actors() if address == "local" else contextlib.nullcontext():
                    yield
            finally:
                ray.shutdown()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """What SIGTERM does behind the block is what it did before: `ray.init` makes it an exit without a word."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextmanager
def folder_for_sockets() -> Iterator[dict[str, str]]:
    """The option of `ray.init` that names Ray's folder, where the usual one (RAY_TMPDIR, TMPDIR) has too long
    a path for sockets: a short one that nobody else can open, gone behind the block unless Ray did not start
    and its logs are there. RayStartError, with what to set, where none can be made."""
    usual = _usual_folder()
    longest = _MOST_SOCKET_BYTES - max(len(_own_name()), _OTHER_NAME_BYTES) - len(_SOCKET)
    if len(os.fsencode(usual)) <= longest:
        yield {}
        return
    try:
        folder = tempfile.mkdtemp(prefix="sluice-", dir=_SHORT_FOLDER)
    except OSError as error:
        name = "RAY_TMPDIR" if os.environ.get("RAY_TMPDIR") else "TMPDIR"
        raise RayStartError(
            f"{name} = {usual!r} is {len(os.fsencode(usual)) - longest} bytes too long for Ray's sockets, and"
            f" no folder can be made in {_SHORT_FOLDER} in its place ({error.strerror}): set RAY_TMPDIR to a"
            f" folder whose path has at most {longest} bytes"
        ) from error
    try:
        yield {"_temp_dir": folder}
    except RayStartError:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def token_without_home() -> Iterator[None]:
    """A local Ray has a token in the block where its user has no home that can be written to: Ray makes one
    and keeps it there, unless RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH is set. This one is gone with the
    block."""
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if named or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or _home_keeps_a_token():
        yield
        return
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        yield
    finally:
        del os.environ["RAY_AUTH_TOKEN"]


def _home_keeps_a_token() -> bool:
    try:
        folder = Path.home() / ".ray"
        folder.mkdir(exist_ok=True)
    except (OSError, RuntimeError):  # no such folder, or a user whom the system does not know
        return False
    token = folder / "auth_token"
    return os.access(token if token.exists() else folder, os.R_OK if token.exists() else os.W_OK)


def what_starts(address: str) -> str:
    """What a session at `address` begins with, for people."""
    if address == "local":
        return "starting Ray, which takes some seconds"
    return f"joining the cluster at {address}" if address != "auto" else "joining the cluster"


def check_cluster(wanted: Reservation) -> None:
    """ResourceError at once where the nodes that are there can never hold `wanted`: Ray would wait for
    ever."""
    import ray

    check_capacity(wanted, [Nodes(resources=node["Resources"]) for node in ray.nodes() if node["Alive"]])


def num_nodes() -> int:
    """Nodes of the connected cluster that are alive."""
    import ray

    return sum(bool(node["Alive"]) for node in ray.nodes())


def node_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _local_cpus(given: int | None, training_cpus: int) -> int | None:
    """Processors of a local Ray; None: Ray counts them."""
    if not training_cpus:
        return given
    if given is not None and given < training_cpus:
        raise RecipeError(
            f"ray.num_cpus = {given}: expected at least {training_cpus}, train.workers times"
            f" train.resources.cpus"
        )
    return given or max(os.cpu_count() or 1, training_cpus)


def _object_store_bytes() -> int:
    """Bytes for the object store of a local Ray: units return counts only, so a small one is enough."""
    return max(200_000_000, min(2_000_000_000, node_memory() // 10))


@contextmanager
def _ray_prints_to_log() -> Iterator[None]:
    """Log what Ray's listener for errors prints, since stdout belongs to our answers. (An error itself
    reaches the user as an exception of ours.)"""
    with contextlib.redirect_stdout(cast(TextIO, _WithoutListener(sys.stdout))):
        yield


class _WithoutListener:
    """A stream that logs what Ray's listener thread writes and passes on everything else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if threading.current_thread().name == "ray_listen_error_messages":
            _log.debug("ray: %s", text)
            return len(text)
        return self._stream.write(text)


def start_or_join(address: str, options: Mapping[str, Any]) -> None:
    """`ray.init` for "local", or for the cluster at `address` (see `reachable`).

    On a machine under load a start can exceed the time that Ray grants its own servers: it is tried once
    more, and failing again is a RayStartError. ConnectionError at once where nothing answers at `address`,
    ValueError where it is no address."""
    import ray

    with reachable(address), without_driver_lines():
        if address != "local":
            ray.init(address=address, **options)
            return
        first = _start(options)
        if first is None:
            return
        _log.warning("Ray did not start and is started once more: %s", _in_one_line(first))
        last = _start(options)
        if last is not None:
            raise RayStartError(
                f"Ray did not start on this machine, twice: {_in_one_line(last)}\n"
                f"Its logs are the newest session under {options.get('_temp_dir') or _private_folder()}; "
                "call again when the machine is less busy or has more memory free"
            ) from last


def _usual_folder() -> str:
    """Where Ray makes its own folder, if it is not told otherwise."""
    return os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()


def _own_name() -> str:
    return f"/ray-{os.getuid()}"


def _private_folder() -> str:
    """The folder of a local Ray's sessions, within one that this user alone can enter: Ray makes its own
    folders writable for everybody, and its workers do so again, so who else is on the machine could put files
    among a session's sockets and spilled objects."""
    base = _usual_folder()
    around = base + _own_name()
    os.makedirs(base, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(around, 0o700)
    found = os.lstat(around)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        around = tempfile.mkdtemp(prefix=_OTHER_NAME, dir=base)  # somebody else was there first
    return os.path.join(around, "ray")


def _start(options: Mapping[str, Any]) -> Exception | None:
    """Start a local Ray; the error where it did not come up. Nothing of it is left then."""
    import ray

    before = _ray_children()
    try:
        with without_cluster_processes():
            ray.init(address="local", **({"_temp_dir": _private_folder()} | dict(options)))
    except (ValueError, TypeError):
        raise  # an option that Ray does not take: another try gives the same
    except Exception as error:  # noqa: BLE001 - Ray raises Exception itself where its servers do not come up
        ray.shutdown()
        # Ray ends its servers when this process ends; until then they would take the next start's processors.
        for pid in _ray_children() - before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        return error
    return None


def _ray_children() -> set[int]:
    """Ray's processes that this one has started and that still run."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if b"/ray/" in _command_line(pid)}


def _command_line(pid: int) -> bytes:
    """Of the process, its arguments parted by zero bytes; empty where it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
