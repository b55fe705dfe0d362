"""`make test` leaves a family of tests out only if nothing that they depend on has changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.families import LOCK, changes, is_needed

CONFTEST = """
from pathlib import Path
from tests.support.families import FamilyChoice

def pytest_addoption(parser):
    parser.addoption("--families")

def pytest_configure(config):
    config.addinivalue_line("markers", "differential: a family")
    config.addinivalue_line("markers", "hostile: a family")
    config.pluginmanager.register(FamilyChoice(Path(__file__).parent))
"""
TESTS = {
    "test_compared.py": """
import pytest
HELPER = "tests.support.made_pages"
pytestmark = pytest.mark.differential("stages/dedup", "lineage/ids.py")
def test_one(): pass
def test_two(): pass
""",
    "test_damaged.py": """
import pytest
@pytest.mark.hostile("stages/reading")
def test_three(): pass
def test_four(): pass
""",
}

PATHS = {"test_compared.py": ("stages/dedup", "lineage/ids.py"), "test_damaged.py": ("stages/reading",)}


def git(repository: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *identity, *arguments], cwd=repository, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a repository of these tests on a new branch, with nothing changed yet."""
    origin = tmp_path / "origin"
    for name in ("stages/dedup/keys.py", "stages/reading/warc.py", "lineage/ids.py", LOCK, "README.md"):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).touch()
    for name, text in (TESTS | {"conftest.py": CONFTEST, ".gitignore": "__pycache__\n"}).items():
        (origin / name).write_text(text)
    git(origin, "init")
    git(origin, "add", ".")
    git(origin, "commit", "--message", "first")
    git(tmp_path, "clone", "origin", "clone")
    git(tmp_path / "clone", "checkout", "-b", "work")
    return tmp_path / "clone"


def chosen(repository: Path, *options: str) -> tuple[set[str], str]:
    """The tests that ran, and the line on what was left out."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--import-mode=importlib", *options],
        cwd=repository,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    ran = {line.split()[0].rpartition("::")[2] for line in done.stdout.splitlines() if " PASSED" in line}
    left_out = [line for line in done.stdout.splitlines() if line.startswith("Left out")]
    return ran, "".join(left_out)


ALL = {"test_one", "test_two", "test_three", "test_four"}


@pytest.mark.parametrize(
    ("changed", "needed"),
    [
        ("stages/dedup/new.py", {"test_compared.py"}),
        ("lineage/ids.py", {"test_compared.py"}),
        ("stages/reading/warc.py", {"test_damaged.py"}),
        ("stages/reading_new.py", set()),
        ("test_damaged.py", {"test_damaged.py"}),
        ("tests/support/made_pages.py", {"test_compared.py"}),
        ("README.md", set()),
        (LOCK, {"test_compared.py", "test_damaged.py"}),
    ],
)
@pytest.mark.parametrize("is_committed", [False, True], ids=["not committed", "committed"])
def test_a_family_runs_if_what_it_tests_or_a_pin_has_changed(
    changed: str, needed: set[str], is_committed: bool, clone: Path
) -> None:
    (clone / changed).parent.mkdir(parents=True, exist_ok=True)
    with open(clone / changed, "a") as file:
        file.write("\n")
    if is_committed:
        git(clone, "add", ".")
        git(clone, "commit", "--message", "a change")
    found = changes(clone)
    assert found is not None
    assert {file for file, text in TESTS.items() if is_needed(found, file, text, PATHS[file])} == needed


def test_a_file_that_moved_away_has_changed(clone: Path) -> None:
    git(clone, "mv", "stages/dedup/keys.py", "README2.md")
    found = changes(clone)
    assert found is not None and found.paths == {"stages/dedup/keys.py", "README2.md"}


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two processes"])
def test_one_line_says_what_was_left_out_and_how_to_run_it(options: tuple[str, ...], clone: Path) -> None:
    (clone / "README.md").write_text("changed")
    ran, told = chosen(clone, "--families=changed", *options)
    base = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True
    ).stdout[:10]
    assert ran == {"test_four"} or options  # -v of two processes is another line
    assert told == (
        f"Left out: 2 differential and 1 hostile tests, because neither what they test nor {LOCK} changed since"
        f" {base}; `make test-all` runs them."
    )


def test_everything_runs_unless_changed_families_are_asked_for(clone: Path) -> None:
    (clone / "README.md").write_text("changed")
    assert chosen(clone, "--families=all") == (ALL, "")


def test_everything_runs_on_a_clone_without_any_change(clone: Path) -> None:
    assert chosen(clone, "--families=changed") == (ALL, "")


def test_there_are_no_changes_to_know_of_without_git_or_an_upstream(clone: Path, tmp_path: Path) -> None:
    (clone / "README.md").write_text("changed")
    assert changes(clone) is not None
    git(clone, "remote", "remove", "origin")
    assert changes(clone) is None
    (tmp_path / "unpacked").mkdir()
    assert changes(tmp_path / "unpacked") is None


def test_there_are_no_changes_to_know_of_in_a_clone_that_is_too_shallow(clone: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        (clone / "README.md").write_text(str(number))
        git(clone, "commit", "--all", "--message", "on a branch")
    git(tmp_path / "origin", "commit", "--allow-empty", "--message", "on main")
    git(clone, "push", "origin", "work")
    git(tmp_path, "clone", "--depth", "1", "--branch", "work", f"file://{tmp_path}/origin", "shallow")
    git(tmp_path / "shallow", "fetch", "--depth", "1", "origin", "main:refs/remotes/origin/main")
    assert changes(tmp_path / "shallow") is None


@pytest.mark.parametrize("paths", ["", "'stages/nowhere'"])
def test_a_family_that_names_nothing_of_the_product_is_an_error(paths: str, clone: Path) -> None:
    (clone / "test_wrong.py").write_text(
        f"import pytest\n@pytest.mark.hostile({paths})\ndef test_five(): pass\n"
    )
    with pytest.raises(subprocess.CalledProcessError) as error:
        chosen(clone)
    assert "has to name the folders or files that it tests" in error.value.stdout + error.value.stderr
