"""Files and names that README, CONTRIBUTING and the pages of docs point to are there: a reader finds what is
named."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.checkout import ROOT

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
FOLDERS = "lineage|stages|trainer|pipeline|sluice|tests|benchmarks|recipes|deploy"
FILE = re.compile(rf"(?<![\w./])(?:{FOLDERS})/[\w/-]*(?:\.\w+|\w/)(?!\w)")
MODULE = re.compile(rf"python -m ((?:{FOLDERS})\.[a-z_.]+[a-z_])(?!\w)")
NAME_IN = re.compile(r"`(\w+)`(?: and `\w+`)? \((?:in )?`([\w/]+\.py)`\)")
IN_FILE = re.compile(r"`([\w/]+\.py)` \(`(\w+)`\)")


def pointers() -> Iterator[tuple[str, str, str]]:
    """(page, path, name that stands there or "")."""
    for page in PAGES:
        # What the log tells is history, and names what there was.
        if page == "docs/log.md":
            continue
        text = (ROOT / page).read_text(encoding="utf-8")
        yield from ((page, match[0], "") for match in FILE.finditer(text))
        yield from ((page, match[1].replace(".", "/") + ".py", "") for match in MODULE.finditer(text))
        yield from ((page, match[2], match[1]) for match in NAME_IN.finditer(text) if "/" in match[2])
        yield from ((page, match[1], match[2]) for match in IN_FILE.finditer(text) if "/" in match[1])


POINTERS = sorted(set(pointers()))


@pytest.mark.parametrize(("page", "path", "name"), POINTERS)
def test_what_a_page_points_to_is_there(page: str, path: str, name: str) -> None:
    assert (ROOT / path).exists(), f"{page} points to {path}"
    if name:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8")), (
            f"{page}: {path} has no {name}"
        )


def test_the_pages_point_to_hundreds_of_places() -> None:
    assert len(POINTERS) > 100
    assert sum(bool(name) for _, _, name in POINTERS) > 20


@pytest.mark.parametrize("package", ["pipeline", "stages", "trainer", "lineage"])
def test_the_tree_of_readme_names_every_folder_and_module_of_a_package(package: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text.partition(f"\n{package}/ ")[2].partition("\n```")[0]
    mine = re.split(r"\n(?=\w)", tree)[0]
    there = {f"{path.name}/" for path in (ROOT / package).iterdir() if (path / "__init__.py").exists()}
    there |= {path.name for path in (ROOT / package).glob("[!_]*.py")}
    assert there <= set(re.findall(r"\w+(?:\.py|/)", mine))
