"""Files that come with Sluice are found in a checkout and in an installation."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from lineage import shipped
from lineage.recipe import RecipeError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["models", "named"])
def test_an_installed_sluice_finds_its_recipes_where_pip_puts_them(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "shipped_folder", shipped.shipped_folder.__wrapped__)
    assert shipped.shipped_folder(folder) == ROOT / "recipes" / folder
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "lib" / "lineage" / "shipped.py"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path) if name == "data" else "")
    with pytest.raises(RecipeError, match=rf"recipes/{folder} is in none of .*: install sluice anew"):
        shipped.shipped_folder(folder)
    data_files = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    (target,) = (where for where, files in data_files.items() if files == [f"recipes/{folder}/*"])
    shutil.copytree(ROOT / "recipes" / folder, tmp_path / target)
    assert shipped.shipped_folder(folder) == tmp_path / target
