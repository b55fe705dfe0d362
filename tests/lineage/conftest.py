"""A small OUT, made once, and a copy of it for each test that changes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from tests.support.outputs.small_out.output import SmallOut, make_small_out


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_small_out(str(tmp_path_factory.mktemp("small") / "out"))


@pytest.fixture
def out(template: SmallOut, tmp_path: Path) -> Folder:
    shutil.copytree(template.folder.url, tmp_path / "out")
    return Folder(str(tmp_path / "out"))
