"""The shape of the source in numbers: `python -m tests.support.structure`.

Each is a count of the files as they lie here, but for `climbs`: a small training run is followed from file to
file. A room is a folder or module right below a package; an arrow is a pair of rooms of which one imports the
other."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(os.environ.get("SLUICE_TREE", Path(__file__).parents[2]))
"""Another tree than this one is looked at where SLUICE_TREE names it."""
PACKAGES: Final = ("lineage", "stages", "trainer", "pipeline", "sluice")
LONG_FILE: Final = 500
_DECONTAMINATE: Final = "stages/steps/decontaminate.py"
_BLOCK: Final = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[(])")


@cache
def sources(package: str) -> tuple[Path, ...]:
    """The modules of a package."""
    return tuple(sorted((ROOT / package).rglob("*.py")))


@cache
def parsed(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def product() -> Iterator[Path]:
    """The modules of all packages."""
    for package in PACKAGES:
        yield from sources(package)


def product_lines() -> int:
    """Lines of all modules, comments and empty ones among them."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in product())


def long_files(package: str | None = None) -> dict[str, int]:
    """Modules of more than LONG_FILE lines, with how many."""
    paths = product() if package is None else sources(package)
    sizes = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in paths
    }
    return {name: size for name, size in sizes.items() if size > LONG_FILE}


def room(package: str, path: Path) -> str | None:
    """The room in which a module lies; None for the package itself."""
    first = path.relative_to(ROOT / package).with_suffix("").parts[0]
    return None if first == "__init__" else first


def rooms(package: str) -> set[str]:
    """The rooms of a package."""
    return {name for path in sources(package) if (name := room(package, path)) is not None}


def arrows(package: str) -> set[tuple[str, str]]:
    """(importing room, imported room) of a package."""
    return {
        (mine, theirs)
        for path in sources(package)
        if (mine := room(package, path)) is not None
        for theirs in _imported_rooms(package, path)
        if theirs != mine and theirs in rooms(package)
    }


def _imported_rooms(package: str, path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            # `from package import room` names it last.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == package and len(parts) > 1:
                yield parts[1]


def naming_decontaminate() -> list[str]:
    """Modules that name the step, besides its own."""
    return [
        name
        for path in product()
        if (name := str(path.relative_to(ROOT))) != _DECONTAMINATE
        and re.search(r"\bdecontaminate\b", path.read_text(encoding="utf-8"))
    ]


def private_helpers() -> tuple[int, int]:
    """Private functions on the top of modules, and those that are used once in theirs."""
    total = once = 0
    for path in product():
        tree = parsed(path)
        names = [
            node.name
            for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("_")
        ]
        uses = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        total += len(names)
        once += sum(uses[name] == 1 for name in names)
    return total, once


def comments(package: str) -> int:
    """Comments on lines of their own."""
    found = 0
    for path in sources(package):
        with path.open("rb") as file:
            found += sum(
                token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
                for token in tokenize.tokenize(file.readline)
            )
    return found


def untyped_rows() -> int:
    """How often `dict[str, Any]` stands in annotations and casts."""
    return sum(len(re.findall(r"dict\[str, Any\]", path.read_text(encoding="utf-8"))) for path in product())


def sentence_lengths() -> list[int]:
    """Words of each sentence of README, CONTRIBUTING and docs; tables, code and headings are left out."""
    found = []
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = _BLOCK.sub("", path.read_text(encoding="utf-8"))
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
            if paragraph.lstrip().startswith(("#", "|", "<", "    ")):
                continue
            for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
                num = len(sentence.split())
                found += [num] if num > 1 else []
    return found


def layers(package: str) -> dict[str, int]:
    """How high each room of a package lies, by the contract of its layers."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    contract = next(each for each in contracts if each["name"] == f"Layers of {package}")
    rows = [[name.strip() for name in row.split("|")] for row in contract["layers"]]
    return {name: len(rows) - index for index, row in enumerate(rows) for name in row}


def climbs() -> tuple[int, int]:
    """A training recipe, followed: how often the next room that a run enters for the first time lies higher than
    the one before it, and the same of files."""
    walked = _walk()
    height = layers("trainer")
    first_rooms = list(dict.fromkeys(name for name, _ in walked))
    files = [name for name, _ in walked]
    return _num_rises(first_rooms, height), _num_rises(files, height)


def _num_rises(names: list[str], height: dict[str, int]) -> int:
    return sum(height[after] > height[before] for before, after in pairwise(names))


def _walk() -> list[tuple[str, str]]:
    """(room, file) of the trainer, in the order in which a run of one process first calls them."""
    from lineage.recipe import as_toml
    from tests.support.outputs.tiny_corpus import make_corpus
    from tests.support.training.training_runs import Run

    walked: dict[str, str] = {}
    package = f"{ROOT / 'trainer'}{os.sep}"

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name not in walked and name.startswith(package):
            where = room("trainer", Path(name))
            if where is not None and frame.f_code.co_name != "<module>":
                walked[name] = where

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        corpus = make_corpus(f"{folder}/out", {"web": [1700, 530]}).url
        recipe = Path(folder) / "recipe.toml"
        recipe.write_text(
            as_toml(Run(data=corpus, output=Path(folder) / "run", changes={"steps": 4}).recipe())
        )
        try:
            from trainer.command import main
        except ImportError:  # the trees before it had one
            from trainer.__main__ import main  # type: ignore[attr-defined, no-redef]
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            main([str(recipe)])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return [(where, name) for name, where in walked.items()]


def numbers() -> dict[str, Any]:
    """All of them, by name."""
    lengths = sentence_lengths()
    num_helpers, num_once = private_helpers()
    by_room, by_file = climbs()
    return {
        "product lines": product_lines(),
        "rooms of trainer": len(rooms("trainer")),
        "arrows of trainer": len(arrows("trainer")),
        "climbs of a training recipe, by room": by_room,
        "climbs of a training recipe, by file": by_file,
        f"files above {LONG_FILE} lines": long_files(),
        "files that name decontaminate": naming_decontaminate(),
        "private helpers used once": f"{num_once} of {num_helpers} ({num_once / num_helpers:.0%})",
        "comments": {package: comments(package) for package in PACKAGES},
        "dict[str, Any]": untyped_rows(),
        "words in a sentence of the docs, mean": round(statistics.mean(lengths), 1),
        "words in a sentence of the docs, 90th percentile": statistics.quantiles(lengths, n=10)[-1],
    }


if __name__ == "__main__":
    print(json.dumps(numbers(), indent=2))
