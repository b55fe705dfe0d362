"""What the tests of every package share, and the order in which their files run."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.families import FamilyChoice
from tests.support.processes.shared_ray import SHARED

# Before torch and numpy are loaded, here and in the processes that tests start: models of a few thousand
# weights gain nothing by a second thread, and each that waits for its turn on a busy machine spins.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine must not fail a property: no example is judged by the clock.
settings.register_profile("sluice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sluice")

# A shell starts its background jobs with SIGINT ignored, which we and the processes that tests start would
# inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--families",
        choices=("all", "changed"),
        default="all",
        help="changed: leave out comparisons with libraries and hostile inputs of unchanged packages",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FamilyChoice())


_MEMORY = Path("/dev/shm")
_ROOM = 8 * 2**30
"""Bytes that the folders of a whole suite never fill."""


def _has_room(folder: Path) -> bool:
    """Whether files of tests may lie in this folder: some are programs."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC


# A small run waits for its 434 syncs twice as long as it computes; on a file system in memory they cost nothing.
if _has_room(_MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder of real crawl files (`crawl/`, `native/`, …), named by SLUICE_TEST_DATA or lying beside the
    checkout."""
    folder = Path(os.environ.get("SLUICE_TEST_DATA", _BESIDE))
    if not (folder / "crawl").is_dir():
        pytest.skip(
            f"no real pages at {folder}: name a folder of crawl files in SLUICE_TEST_DATA to run this"
        )
    return folder


@pytest.fixture(scope="module")
def small_ray() -> None:
    """A Ray of our own until the module's end, and longer where the next module asks for it too."""
    SHARED.start()


@pytest.fixture(scope="module")
def address(small_ray: None) -> str:
    """The address of `small_ray`; several runs may share it."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


@pytest.fixture(scope="session", autouse=True)
def no_ray_is_left() -> Iterator[None]:
    """The last module's stops too."""
    yield
    SHARED.end()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test meets a Ray that no test of its own file asks for."""
    if _file_of(item) not in _need_ray:
        SHARED.stop()


_need_ray: set[str] = set()
"""The files of which a test asks for Ray."""

_LONGEST_FIRST = ("trainer", "pipeline", "sluice", "lineage")
"""The folders whose files take longest: what ends last is short, so that all processes of pytest-xdist end
together."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes stays: it is not looked through for dead cycles meanwhile."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)  # behind the choice of -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that need Ray follow each other, those that also stop it last; then the others as above."""
    _need_ray.update(_files_with("small_ray", items))
    stop_it = _files_with("no_other_ray", items)

    def place(item: pytest.Item) -> int:
        if _file_of(item) in _need_ray:
            return int(_file_of(item) in stop_it)
        folder = _file_of(item).split("/")[1]
        return _LONGEST_FIRST.index(folder) + 2 if folder in _LONGEST_FIRST else len(_LONGEST_FIRST) + 2

    items.sort(key=place)


def _files_with(fixture: str, items: list[pytest.Item]) -> set[str]:
    """The files of which a test uses this fixture."""
    return {_file_of(item) for item in items if fixture in getattr(item, "fixturenames", ())}


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
