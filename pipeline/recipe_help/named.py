"""The named recipes of recipes/named/: NAME.toml, a recipe that runs as it is, and for those that follow a
published one NAME.departures.toml, what each step of it is here."""

from __future__ import annotations

import functools
import itertools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from lineage.shipped import shipped_folder

NAMED: Final = ("fineweb", "fineweb2", "dclm", "dolma3", "code")
"""Those that follow a published one."""
KINDS: Final = (*NAMED, "text", "train", "mix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A recipe to start from: the comment on its top; its tables in the order of the file; the lines at its
    end that stand behind a #, since they ask for a file that is not shipped."""

    comment: str
    tables: Mapping[str, Any]
    rest: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """A step of a published recipe: what the `original` does, whether it is `here`, and the reason where it
    is not the same. `keys` are patterns of the recipe's keys that it depends on; quality.rules.NAME stands for a
    rule set of that name."""

    step: str
    original: str
    here: Literal["same", "near", "not here"]
    reason: str = ""
    keys: tuple[str, ...] = ()

    def depends_on(self, key: str) -> bool:
        """Whether one of its patterns matches the key, or a key below it."""
        return any(fnmatchcase(name, pattern) for pattern in self.keys for name in (key, f"{key}."))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecipe:
    """A published recipe: its `sources`, and its steps in order."""

    title: str
    sources: str
    steps: tuple[PublishedStep, ...]

    def steps_of(self, keys: Iterable[str]) -> list[str]:
        """The names of the steps that depend on one of the keys, in order."""
        return [each.step for each in self.steps if any(map(each.depends_on, keys))]


@functools.cache
def template(name: str) -> Template:
    """The recipe of that name, as it stands in its file."""
    text = _read(f"{name}.toml")
    lines = text.splitlines()
    top = list(itertools.takewhile(_is_comment, lines))
    rest = list(itertools.takewhile(_is_comment, reversed(lines)))[::-1]
    comment = " ".join(line.removeprefix("# ") for line in top)
    return Template(comment=comment, tables=tomllib.loads(text), rest=tuple(rest))


@functools.cache
def published(name: str) -> PublishedRecipe:
    """The published recipe that the one of that name follows."""
    raw = tomllib.loads(_read(f"{name}.departures.toml"))
    return PublishedRecipe(title=raw["title"], sources=raw["sources"], steps=tuple(map(_step, raw["step"])))


def _step(row: Mapping[str, Any]) -> PublishedStep:
    if "as_in" in row:  # a step that an earlier recipe has too
        return next(each for each in published(row["as_in"]).steps if each.step == row["step"])
    return PublishedStep(**{**row, "keys": tuple(row.get("keys", ()))})


def _is_comment(line: str) -> bool:
    return line.startswith("#")


def _read(name: str) -> str:
    return (shipped_folder("named") / name).read_text(encoding="utf-8")
