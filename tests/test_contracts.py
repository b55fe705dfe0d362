"""Every contract of pyproject.toml on imports is seen to fail on an import that it forbids."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS: Sequence[Mapping[str, Any]] = SETTINGS["contracts"]

pytestmark = pytest.mark.slow


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages and pyproject.toml, to be changed."""
    for package in SETTINGS["root_packages"]:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> tuple[int, str]:
    """The exit code and output of import-linter on the packages in `folder`."""
    call = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import"
        " lint_imports_command as c; c(sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", call, "--no-cache", "--no-logo"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def forbidden_imports(contract: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, str]]:
    """(importer, imported) for each boundary of the contract: an import of the layer above, of a sibling in
    the same layer, or of a forbidden module."""
    if contract["type"] == "forbidden":
        allowed = [line.split(" -> ")[0] for line in contract.get("ignore_imports", ())]
        for source in contract["source_modules"]:
            importer = next(name for name in modules(folder, source) if not is_any(name, allowed))
            yield from ((importer, imported) for imported in contract["forbidden_modules"])
        return
    layers = [[part.strip() for part in layer.split("|")] for layer in contract["layers"]]
    for container in contract.get("containers", [""]):
        named = [[f"{container}.{part}".removeprefix(".") for part in layer] for layer in layers]
        for upper, lower in pairwise(named):
            yield from ((part, upper[0]) for part in lower)
        for layer in named:
            yield from pairwise(layer)


def modules(folder: Path, name: str) -> list[str]:
    """A module, or those of a package, without their `__init__` and `__main__`."""
    path = folder / name.replace(".", "/")
    files = sorted(path.rglob("[!_]*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [".".join(file.relative_to(folder).with_suffix("").parts) for file in files]


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether an import of `ray` is allowed in the module."""
    return any(re.fullmatch(pattern.replace(".", r"\.").replace("*", "[^.]+"), name) for pattern in patterns)


def plant(folder: Path, importer: str, imported: str) -> None:
    """Append an import to a module, or to a package's `__init__`."""
    path = folder / importer.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    with file.open("a") as stream:
        stream.write(f"\nimport {imported}\n")


def test_the_contracts_hold_on_the_packages_as_they_are(copy: Path) -> None:
    code, output = lint(copy)
    assert (code, f"Contracts: {len(CONTRACTS)} kept, 0 broken." in output) == (0, True), output


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["name"])
def test_a_contract_fails_on_each_import_that_it_forbids(contract: Mapping[str, Any], copy: Path) -> None:
    planted = list(forbidden_imports(contract, copy))
    assert planted
    for importer, imported in planted:
        plant(copy, importer, imported)
    code, output = lint(copy)
    _, _, details = output.partition("Broken contracts")
    (section,) = re.findall(
        rf"^{re.escape(contract['name'])}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", details, re.M | re.S
    )
    assert code == 1
    assert [edge for edge in planted if not re.search(rf"-\s+{edge[0]} -> {edge[1]}\b", section)] == []


@pytest.mark.parametrize(
    "contract", [c for c in CONTRACTS if c.get("exhaustive")], ids=lambda c: str(c["name"])
)
def test_a_module_that_no_layer_names_breaks_the_contract(contract: Mapping[str, Any], copy: Path) -> None:
    (copy / contract["containers"][0].replace(".", "/") / "stray.py").write_text("")
    code, output = lint(copy)
    assert code == 1 and re.search(rf"^{re.escape(contract['name'])} BROKEN", output, re.M), output
    assert "stray" in output
