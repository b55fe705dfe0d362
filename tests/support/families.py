"""Families of tests that run if their package changed: comparisons with pinned libraries, and damaged or hostile
inputs in large numbers.

A test file declares its family and the folders or files of the product that it tests:

    pytestmark = pytest.mark.differential("stages/dedup")

`--families=changed` (`make test`) leaves the family out if nothing in those folders, in the test file, in the modules
of tests/support that it imports, nor in `LOCK` differs from the merge base with main's upstream. Without such a base,
or if nothing at all differs (a fresh clone of main), everything runs. `--families=all` is the default."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import pytest

from tests.support.checkout import ROOT

FAMILIES: Final = ("differential", "hostile")
LOCK: Final = "deploy/constraints.txt"
"""A new version of a pinned library changes what both families compare with."""
_UPSTREAMS: Final = ("main@{upstream}", "origin/main")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a checkout changed: the commit that it is compared with, and paths relative to the root."""

    base: str
    paths: frozenset[str]


def changes(root: Path) -> Changes | None:
    """Committed, uncommitted and new files since the merge base with main's upstream; None if there is no base
    to compare with, or no difference from it."""
    for upstream in _UPSTREAMS:
        base = _git(root, "merge-base", "HEAD", upstream)
        if base:
            named = _git(root, "diff", "--name-only", "--no-renames", base[0])
            untracked = _git(root, "ls-files", "--others", "--exclude-standard")
            paths = frozenset([*(named or ()), *(untracked or ())])
            return Changes(base=base[0], paths=paths) if paths and named is not None else None
    return None


def _git(root: Path, *arguments: str) -> list[str] | None:
    """The lines that git prints; None if there is no git or it fails."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=false", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.splitlines()


def is_needed(changed: Changes, file: str, source: str, folders: tuple[str, ...]) -> bool:
    """Whether the tests of `file`, whose text is `source`, run after these changes to the repository."""
    if changed.paths & {file, LOCK}:
        return True
    for path in changed.paths:
        if any(PurePosixPath(path).is_relative_to(folder) for folder in folders):
            return True
        is_support = path.startswith("tests/support/") and path.endswith(".py")
        if is_support and path.removesuffix(".py").replace("/", ".") in source:
            return True
    return False


class FamilyChoice:
    """The plug-in of a pytest process: leaves out what `--families=changed` does not need, and says so."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root, self._base = root, ""
        self._left_out: Counter[str] = Counter()

    @pytest.hookimpl(trylast=True)  # behind the choice of -m, which is not to be counted
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        changed = changes(self._root) if config.getoption("--families") == "changed" else None
        sources: dict[Path, str] = {}
        kept, left_out = [], []
        for item in items:
            family, folders = self._family_of(item)
            if item.path not in sources:
                sources[item.path] = item.path.read_text()
            file = item.path.relative_to(self._root).as_posix()
            if changed is None or not family or is_needed(changed, file, sources[item.path], folders):
                kept.append(item)
            else:
                left_out.append(item)
                self._left_out[family] += 1
        if changed is not None and left_out:
            self._base = changed.base
            items[:] = kept
            config.hook.pytest_deselected(items=left_out)

    def _family_of(self, item: pytest.Item) -> tuple[str, tuple[str, ...]]:
        """The family of a test and what it tests; ("", ()) for a test of none."""
        for name in FAMILIES:
            marker = item.get_closest_marker(name)
            if marker is not None:
                if not marker.args or not all((self._root / folder).exists() for folder in marker.args):
                    raise pytest.UsageError(
                        f"{item.nodeid}: {name}{marker.args} has to name the folders or files that it tests"
                    )
                return name, marker.args
        return "", ()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A process of pytest-xdist tells its controller, which collects nothing itself."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left_out"] = (self._base, dict(self._left_out))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Every process has collected the same."""
        self._base, left_out = getattr(node, "workeroutput", {}).get("left_out", ("", {}))
        self._left_out = Counter(left_out)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            counts = " and ".join(f"{num:,} {family}" for family, num in sorted(self._left_out.items()))
            terminalreporter.write_line(
                f"Left out: {counts} tests, because neither what they test nor {LOCK} changed since "
                f"{self._base[:10]}; `make test-all` runs them."
            )
