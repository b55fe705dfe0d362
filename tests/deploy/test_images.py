"""Container files and the Slurm script, as far as they can be checked without a builder and a scheduler."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = sorted((ROOT / "deploy").glob("Containerfile.*"))
SLURM = ROOT / "deploy" / "slurm" / "sluice.sbatch"
CONSTRAINTS = ROOT / "deploy" / "constraints.txt"


def tool(name: str) -> str:
    """A linter that was installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, rest) of each line, continued lines joined, comments aside."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.name)
def test_an_image_is_pinned_small_and_not_roots(path: Path) -> None:
    told = instructions(path)
    bases = [rest.split()[0] for name, rest in told if name == "FROM"]
    assert bases and all(re.fullmatch(r"[a-z/]+:\d+\.\d+\.\d+-slim-[a-z]+", base) for base in bases)
    last = told[max(index for index, (name, _) in enumerate(told) if name == "FROM") :]
    (user,) = [rest for name, rest in last if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    for name, rest in told:
        assert name != "ADD"
        if name == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
        if name == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest
        assert not re.search(r"(SECRET|PASSWORD|TOKEN)=", rest)


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.name)
def test_an_image_holds_the_torch_and_all_the_packages_of_the_project(path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (torch,) = [
        line for line in project["project"]["optional-dependencies"]["train"] if line.startswith("torch==")
    ]
    told = instructions(path)
    assert any(torch in rest for name, rest in told if name == "RUN")
    copied = {rest.split()[-1] for name, rest in told if name == "COPY" and not rest.startswith("--from")}
    packages = {
        pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert packages <= copied
    sources = [
        word for name, rest in told if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    ]
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.name)
def test_a_container_file_passes_hadolint(path: Path) -> None:
    ended = subprocess.run([tool("hadolint"), str(path)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_every_library_of_the_project_is_pinned_to_a_version_that_it_allows() -> None:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = (*project["dependencies"], *extras["train"], *extras["mix"], *extras["models"], *extras["dev"])
    wanted = [Requirement(line) for line in lines]
    for requirement in wanted:
        if requirement.name != "torch":  # pinned by the container files, differently for each kind
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)], prereleases=True)


def test_the_slurm_script_is_sound_shell() -> None:
    ended = subprocess.run([tool("shellcheck"), str(SLURM)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_the_slurm_script_without_a_command_says_how_to_call_it() -> None:
    ended = subprocess.run(["bash", str(SLURM)], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "usage: sbatch" in ended.stderr
