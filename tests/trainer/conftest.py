"""Fixtures of the trainer's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lineage.storage import clients as storage
from lineage.storage.folder import Folder
from tests.support.outputs.small_out.output import SmallOut
from tests.support.stores.s3_process import s3_process
from tests.support.training.forgotten import make_few_ids_out


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    """A small OUT of few ids, for runs that go back and for what is read of them."""
    return make_few_ids_out(tmp_path_factory.mktemp("small"))


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An empty bucket `runs` on a server of its own; gives the environment that leads there."""
    with s3_process() as there:
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        storage._filesystem.cache_clear()
        storage.filesystem("s3://runs").mkdir("runs")
        yield there
        storage._filesystem.cache_clear()


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.slow)])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """A run's output, empty: on disk, and in a bucket."""
    if request.param == "disk":
        return Folder(str(tmp_path))
    request.getfixturevalue("s3")
    return Folder("s3://runs/one")
