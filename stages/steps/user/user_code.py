"""The files of the user's own steps: a run is a function of them, and a job brings them along."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lineage.recipe import RecipeError
from stages.libraries import OURS, imported_names

_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of the user's code. `name` is where it lies below the folder that Python found it from, the same
    on every machine; `is_library` if it lies among installed packages, which an image has and nobody
    ships."""

    name: str
    path: str
    is_library: bool


def function_files(steps: Sequence[str]) -> list[CodeFile]:
    """The files of the user's code among `steps`, by name: they shape a result as the recipe does. Of a
    module in a package the whole of that, since it may import the rest; and the modules of the user's that
    these name in import statements. RecipeError where there is no such module."""
    found: dict[str, CodeFile] = {}
    listed: set[str] = set()
    for name in steps:
        module_name, colon, _ = name.partition(":")
        if not colon:
            continue
        see_working_folder()
        try:
            files = _module_files(module_name, listed)
        except (ImportError, ValueError) as error:
            raise RecipeError(
                f"source.steps: {name!r}: there is no module {module_name!r} ({error})"
            ) from error
        while files:
            file = files.pop()
            if found.setdefault(file.name, file) is file and not file.is_library:
                files += _imported_files(file, listed)
    return [found[name] for name in sorted(found)]


def function_libraries(steps: Sequence[str]) -> tuple[str, ...]:
    """The installed distributions that the user's code among `steps` lies in or imports, by name: their
    releases shape a result too. RecipeError as `function_files`."""
    files = function_files(steps)
    tops = {file.name.partition("/")[0].removesuffix(".py") for file in files if file.is_library}
    tops |= {name.partition(".")[0] for file in files if not file.is_library for name in _names_in(file)}
    tops -= {*OURS, *sys.stdlib_module_names}
    holders = _holders(_installed()) if tops else {}
    return tuple(sorted({name.lower() for top in tops for name in holders.get(top, ())}))


def _installed() -> tuple[tuple[str, int], ...]:
    """The folders in which Python looks for distributions, and when what lies in each last changed."""
    return tuple((path, os.stat(path).st_mtime_ns) for path in sys.path if os.path.isdir(path))


@functools.lru_cache(maxsize=1)
def _holders(_installed: tuple[tuple[str, int], ...]) -> Mapping[str, Sequence[str]]:
    """The distributions that hold each module, kept as long as nothing is installed: to look through them all
    takes a quarter of a second."""
    return importlib.metadata.packages_distributions()


def _imported_files(file: CodeFile, listed: set[str]) -> Iterator[CodeFile]:
    """Those of the modules that a file names in import statements, installed ones aside, and those `listed`
    before. (Imports within a package are of files that belong to it anyhow.)"""
    names = dict.fromkeys(_names_in(file))
    # Asked of the top alone: to find torch.nn, Python would import torch.
    tops = {top for top in {name.partition(".")[0] for name in names} if _is_of_user(top)}
    for name in names:
        if name.partition(".")[0] in tops:
            try:
                yield from _module_files(name, listed)
            except (ImportError, ValueError):
                continue  # a name within a module, or an import that the code does without


def _names_in(file: CodeFile) -> tuple[str, ...]:
    """What a file of the user's imports; nothing where it is no Python."""
    if not file.path.endswith(".py"):
        return ()
    try:
        return _parsed(Path(file.path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()  # who imports it is told


@functools.lru_cache(maxsize=1024)
def _parsed(source: bytes) -> tuple[str, ...]:
    """`imported_names`, kept: a plan asks for the files and for the libraries of each step."""
    return tuple(imported_names(source))


def _is_of_user(top: str) -> bool:
    """Whether a top-level module or package is neither installed nor of Python or Sluice."""
    if top in OURS or top in sys.stdlib_module_names:
        return False
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return any(place is not None and not place.startswith(_LIBRARIES) for place in places)


def _module_files(module_name: str, listed: set[str]) -> list[CodeFile]:
    """The file of a module, or all of its package; nothing where what holds it is `listed`, to which it is
    added."""
    parts = module_name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = importlib.util.find_spec(".".join(parts[:depth]))
        if spec is None:
            raise ImportError(f"no module named {'.'.join(parts[:depth])}")
        if spec.origin is None or not os.path.isfile(spec.origin):
            continue  # a folder that only holds packages, or a module within Python itself
        if spec.origin in listed:
            return []
        listed.add(spec.origin)
        is_library = spec.origin.startswith(_LIBRARIES) or parts[0] in OURS
        if spec.submodule_search_locations is None or is_library:
            name = "/".join([*parts[: depth - 1], os.path.basename(spec.origin)])
            return [CodeFile(name, spec.origin, is_library)]
        folder = Path(spec.origin).parent
        return [
            CodeFile("/".join([*parts[:depth], path.relative_to(folder).as_posix()]), str(path), is_library)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        ]
    return []


def see_working_folder() -> None:
    """Let the user's modules beside the recipe be found: a console script does not look where it was
    called."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
