"""The recipe's reader: TOML tables into frozen dataclasses that each package declares for itself.

A package declares a frozen, keyword-only dataclass, `class UrlTable: block_hosts: tuple[str, ...] = key((),
help="…")`, and `load_recipe(path, PipelineRecipe)` gives the instance, or raises a RecipeError that names the
key, the value and what is allowed. Supported field types: str, int, float, bool, `X | None`, Literal["a",
"b"], tuple[X, ...], dict[str, X] and nested dataclasses (a table) or tuples of them (an array of tables)."""

from __future__ import annotations

import codecs
import copy
import dataclasses
import difflib
import functools
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import tomli_w

from lineage.magic import BZIP2_MAGIC, GZIP_MAGIC, XZ_MAGIC, ZIP_MAGIC, ZSTD_MAGIC
from lineage.secrets import redacted

T = TypeVar("T")

_PATH_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_MAX_DEPTH: Final = 50
"""Tables and lists within each other. No recipe comes near, and Python's recursion ends far above."""


IN_PROCESS: Final = "none"
"""What `ray.address` names, in both kinds of recipe, for work without Ray."""


class RecipeError(ValueError):
    """The recipe is wrong: the message names the key, the value and what is allowed (exit code 2).

    `key` is the dotted name of the key, as in source[0].limit, where this reader found the fault; None where
    a check of several keys together did. `others` are further faults that the reader found in the same
    recipe."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.others: tuple[RecipeError, ...] = ()


class _Faults:
    """Collects the RecipeErrors of its blocks, so that a reader goes on behind each."""

    def __init__(self) -> None:
        self._found: list[RecipeError] = []

    def add(self, error: RecipeError) -> None:
        self._found += [error, *error.others]

    @contextmanager
    def collected(self) -> Iterator[None]:
        try:
            yield
        except RecipeError as error:
            self.add(error)

    def raise_any(self) -> None:
        """Raise the first one, which bears the others."""
        if self._found:
            self._found[0].others = tuple(self._found[1:])
            raise self._found[0]


@contextmanager
def errors_about(name: str) -> Iterator[None]:
    """RecipeErrors of the block begin with the key that they are about."""
    try:
        yield
    except RecipeError as error:
        raise RecipeError(f"{name}: {error}", error.key) from error


def key(
    default: Any = dataclasses.MISSING,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    choices: Sequence[str] | None = None,
    is_path: bool = False,
    help: str = "",
    unit: str = "",
    source: str = "",
    unless: str = "",
) -> Any:
    """A field of a recipe table: its default (none: required), its bounds and one line of help.

    `choices` bounds a str, or each member of a tuple[str, ...]; of a table of named tables it says which
    names there are, and the shape itself refuses others. With `is_path` it is what `expanded_path` gives.
    `unit` is what a number counts, where the key's name does not end in it; `source` is where a published
    threshold comes from. A key with a default is required all the same `unless` another one of its table is
    given."""
    metadata = {
        "at_least": at_least,
        "at_most": at_most,
        "above": above,
        "choices": choices,
        "is_path": is_path,
        "help": help,
        "unit": unit,
        "source": source,
        "unless": unless,
    }
    if isinstance(default, (list, dict)) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def load_recipe(path: str | Path, shape: type[T], overrides: Sequence[str] = ()) -> T:
    """The recipe at `path` as a `shape`, after `--set key=value` overrides; RecipeError if it is wrong.

    A shape may say in `mistaken_for` by which table a recipe of another kind is known, and what that one
    is."""
    raw = read_toml(path)
    table, what = getattr(shape, "mistaken_for", ("", ""))
    if table in raw:
        raise RecipeError(f"{path} {what}")
    return parse_table(shape, with_overrides(raw, overrides))


def read_toml(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, object]:
    """The TOML of `path` with the overrides applied; RecipeError if it cannot be read."""
    try:
        # Editors on Windows put a byte order mark first, which TOML does not allow.
        raw = parse_toml(utf8_text(Path(path).read_bytes(), "the file"))
    except FileNotFoundError as error:
        raise RecipeError(f"no recipe at {path}: give the path of a .toml file") from error
    except IsADirectoryError as error:
        raise RecipeError(
            f"{path} is a folder: give a .toml file, such as an output's {path}/recipe.toml"
        ) from error
    except (OSError, tomllib.TOMLDecodeError, RecipeError) as error:
        raise RecipeError(f"{path} cannot be read as TOML: {error}") from error
    return with_overrides(raw, overrides)


def parse_toml(text: str) -> dict[str, object]:
    """The tables of a TOML text; TOMLDecodeError where it is none, RecipeError for numbers and nesting beyond
    all bounds."""
    too_deep = f"its tables and lists are nested too deep: expected at most {_MAX_DEPTH} within each other"
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # of `int`, which by default takes no more than 4,300 digits
        raise RecipeError("it has a number of thousands of digits: expected one that 64 bits hold") from error
    except RecursionError as error:
        raise RecipeError(too_deep) from error
    inner: list[Any] = [raw]
    for _ in range(_MAX_DEPTH):
        members = (value.values() if isinstance(value, dict) else value for value in inner)
        inner = [item for of_one in members for item in of_one if isinstance(item, (dict, list))]
    if inner:
        raise RecipeError(too_deep)
    return raw


_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PACKED: Final = {
    re.compile(re.escape(GZIP_MAGIC)): "gzip",
    re.compile(re.escape(XZ_MAGIC)): "xz",
    re.compile(re.escape(ZSTD_MAGIC)): "zstd",
    re.compile(re.escape(ZIP_MAGIC)): "zip",
    BZIP2_MAGIC: "bzip2",
}


def utf8_text(data: bytes, what: str) -> str:
    """The text of a file that a person wrote, in UTF-8 with a byte order mark or without; RecipeError names
    `what` and the line where it is in another encoding."""
    packed = next((kind for begins, kind in _PACKED.items() if begins.match(data)), None)
    if packed is not None:
        raise RecipeError(f"{what} is compressed ({packed}): unpack it, and name the text file")
    if (at := data.find(b"\0")) >= 0 and not data.startswith(_UTF16):
        line = data.count(b"\n", 0, at) + 1
        raise RecipeError(f"{what} is no text in UTF-8: it holds the byte 0x00 in line {line}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith(_UTF16):
            raise RecipeError(f"{what} is UTF-16: save it as UTF-8") from error
        line = data.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"{what} is not UTF-8 (byte 0x{data[error.start]:02x} in line {line}), but perhaps Windows-1252"
            " or Latin-1: save it as UTF-8"
        ) from error


def with_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, object]:
    """A copy of plain tables with `key=value` overrides applied, as `--set` gives them."""
    changed = copy.deepcopy(dict(raw))
    for override in [overrides] if isinstance(overrides, str) else overrides:
        _override(changed, override)
    return changed


def _override(raw: dict[str, object], override: str) -> None:
    name, equals, text = override.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts):
        raise RecipeError(f"--set {override!r}: expected key=value, for example --set run.seed=7")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecipeError):
        value = text
    where: Any = raw
    for part in parts[:-1]:
        if isinstance(where, list):
            number = whole_number(part)
            if number is None or number >= len(where):
                raise RecipeError(
                    f"--set {override!r}: {part!r} is not an entry of the list (0 to {len(where) - 1})"
                )
            where = where[number]
        else:
            where = where.setdefault(part, {})
        if not isinstance(where, (dict, list)):
            raise RecipeError(f"--set {override!r}: {part!r} is a value, not a table")
    if isinstance(where, list):
        raise RecipeError(
            f"--set {override!r}: {parts[-2]!r} is a list of tables; name an entry, as in {parts[-2]}.0.key"
        )
    where[parts[-1]] = value


def whole_number(text: str) -> int | None:
    """The number from 0 that a text gives in at most 18 digits, 0 to 9 (so that 64 bits hold it); None for
    another text. `str.isdigit` alone takes ² too, which `int` refuses, and the digits of every script."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def parse_table(shape: type[T], raw: Mapping[str, Any], where: str = "") -> T:
    """`raw` as a `shape`; `where` is the table's dotted name, for errors."""
    if not isinstance(raw, Mapping):
        raise RecipeError(f"{where or 'recipe'} = {_shorten(raw)}: expected a table", where or None)
    hints = _hints(typing.cast(Any, shape))
    fields = {field.name: field for field in dataclasses.fields(shape)}  # type: ignore[arg-type]
    faults = _Faults()
    for name in raw:
        if name not in fields:
            faults.add(_unknown_key(name, raw[name], fields, where, _inner_keys(fields, hints)))
    values: dict[str, object] = {}
    for name, field in fields.items():
        dotted = _dotted(where, name)
        if name in raw:
            with faults.collected():
                values[name] = _convert(hints[name], raw[name], dotted, field.metadata)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            faults.add(RecipeError(f"key {dotted!r} is missing: it has no default", dotted))
        elif (other := field.metadata.get("unless")) and other not in raw:
            faults.add(
                RecipeError(f"key {dotted!r} is missing: give it, or {_dotted(where, other)!r}", dotted)
            )
    faults.raise_any()
    return shape(**values)


def _keys_of(hint: Any) -> set[str]:
    """The keys of a table; none where the hint is of another value."""
    return {field.name for field in dataclasses.fields(hint)} if dataclasses.is_dataclass(hint) else set()


def _inner_keys(fields: Iterable[str], hints: Mapping[str, Any]) -> dict[str, str]:
    """The keys of the tables within a table, by their short names; of equal ones the first."""
    inner: dict[str, str] = {}
    for table in fields:
        for name in _keys_of(hints[table]):
            inner.setdefault(name, f"{table}.{name}")
    return inner


def _unknown_key(
    name: str, value: Any, known: Iterable[str], where: str, inner: Mapping[str, str]
) -> RecipeError:
    """`inner`: the keys of the tables within this one, of which a short name, also a misspelt one, was likely
    meant to be one."""
    close = [inner[name]] if name in inner else difflib.get_close_matches(name, known, n=1)
    if not close:
        close = [inner[short] for short in difflib.get_close_matches(name, inner, n=1, cutoff=_LIKE_A_KEY)]
    # A long list hides the near match from who mistyped one letter.
    hint = f"; did you mean {_dotted(where, close[0])!r}?" if close else f". Known here: {', '.join(known)}"
    return RecipeError(
        f"unknown key {_dotted(where, name)!r} (= {_shorten(value)}){hint}", _dotted(where, name)
    )


_LIKE_A_KEY: Final = 0.8
"""How much a word must be like one of the many keys of all tables together, by difflib's ratio, to be taken
for it."""


@functools.cache
def _hints(shape: Any) -> dict[str, object]:
    return typing.get_type_hints(shape)


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shorten(value: Any) -> str:
    try:
        text = redacted(repr(value))
    except (
        ValueError
    ):  # a number that was written with 0x, 0o or 0b, and has too many digits to be written without
        text = hex(value) if isinstance(value, int) else "a list or table of numbers of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def _convert(hint: Any, value: Any, where: str, bounds: Mapping[str, Any]) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _convert_union(arguments, value, where, bounds)
    if origin is Literal:
        if value not in arguments or isinstance(value, bool) != any(
            isinstance(a, bool) and a == value for a in arguments
        ):
            raise RecipeError(
                f"{where} = {_shorten(value)}: expected one of {', '.join(map(repr, arguments))}", where
            )
        return value
    if origin is tuple:
        return _convert_tuple(arguments, value, where, bounds)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise RecipeError(f"{where} = {_shorten(value)}: expected a table of name = value", where)
        return {name: _convert(arguments[1], item, f"{where}.{name}", bounds) for name, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return parse_table(typing.cast(type, hint), value, where)
    return _convert_scalar(hint, value, where, bounds)


def _convert_union(arguments: tuple[Any, ...], value: Any, where: str, bounds: Mapping[str, Any]) -> Any:
    errors = []
    for argument in arguments:
        if argument is type(None):
            continue
        try:
            return _convert(argument, value, where, bounds)
        except RecipeError as error:
            errors.append(error)
    # A fault within the value is nearer than that it is of another type; of those, each names one that it may be.
    begin = f"{where} = {_shorten(value)}: expected "
    if len(errors) > 1 and all(str(error).startswith(begin) for error in errors):
        ways = " or ".join(str(error).removeprefix(begin).removeprefix("one of ") for error in errors)
        raise RecipeError(begin + ways, where)
    raise errors[-1]


def _convert_tuple(
    arguments: tuple[Any, ...], value: Any, where: str, bounds: Mapping[str, Any]
) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise RecipeError(f"{where} = {_shorten(value)}: expected a list", where)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        faults, converted = _Faults(), []
        for i, item in enumerate(value):
            with faults.collected():
                converted.append(_convert(arguments[0], item, f"{where}[{i}]", bounds))
        faults.raise_any()
        return tuple(converted)
    if len(value) != len(arguments):
        raise RecipeError(f"{where} = {_shorten(value)}: expected a list of {len(arguments)}", where)
    return tuple(
        _convert(a, item, f"{where}[{i}]", bounds)
        for i, (a, item) in enumerate(zip(arguments, value, strict=True))
    )


def _convert_scalar(hint: Any, value: Any, where: str, bounds: Mapping[str, Any]) -> Any:
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise RecipeError(f"{where} = {_shorten(value)}: expected a number that 64 bits hold", where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise RecipeError(f"{where} = {_shorten(value)}: expected {names[hint]}", where)
    if bounds.get("is_path"):
        value = expanded_path(value, where)
    if hint in (int, float):
        _check_bounds(value, where, bounds)
    choices = bounds.get("choices")
    if choices is not None and value not in choices:
        raise RecipeError(
            f"{where} = {_shorten(value)}: expected one of {', '.join(map(repr, choices))}", where
        )
    return value


def expanded_path(path: str, where: str) -> str:
    """A path with `~`, `~user`, `$NAME` and `${NAME}` as a shell has them; a URL as it is. RecipeError, which
    names the key or option `where` that gives the path, for a variable that is not set and a user that is not
    there."""
    scheme, found, rest = path.partition("://")
    if found and scheme != "file":
        return path

    def value(variable: re.Match[str]) -> str:
        name = variable[1] or variable[2]
        if name not in os.environ:
            raise RecipeError(
                f"{where} = {path!r}: the variable {name} is not set: set it, or write the path out", where
            )
        return os.environ[name]

    if "\0" in path:
        raise RecipeError(
            f"{where} = {path!r}: no file's name holds the character NUL: write it without", where
        )
    filled = _PATH_VARIABLE.sub(value, rest if found else path)
    home = os.path.expanduser(filled)
    if home.startswith("~"):
        user = home.partition("/")[0]
        raise RecipeError(
            f"{where} = {path!r}: there is no home of {user[1:]!r} here: write the path out, and ./{user}"
            " for a file of that name",
            where,
        )
    return f"{scheme}{found}{home}" if found else home


def _check_bounds(value: float, where: str, bounds: Mapping[str, Any]) -> None:
    at_least, at_most, above = bounds.get("at_least"), bounds.get("at_most"), bounds.get("above")
    if not math.isfinite(value):
        raise RecipeError(f"{where} = {value}: expected a finite number", where)
    if at_least is not None and value < at_least:
        raise RecipeError(f"{where} = {value}: expected at least {at_least}", where)
    if above is not None and value <= above:
        raise RecipeError(f"{where} = {value}: expected more than {above}", where)
    if at_most is not None and value > at_most:
        raise RecipeError(f"{where} = {value}: expected at most {at_most}", where)


def as_plain(recipe: Any) -> Any:
    """The recipe as plain dicts and lists, every default filled in, None left out: what TOML and JSON can
    hold."""
    if dataclasses.is_dataclass(recipe) and not isinstance(recipe, type):
        pairs = ((field.name, getattr(recipe, field.name)) for field in dataclasses.fields(recipe))
        return {name: as_plain(value) for name, value in pairs if value is not None}
    if isinstance(recipe, Mapping):
        return {name: as_plain(value) for name, value in recipe.items() if value is not None}
    if isinstance(recipe, (list, tuple)):
        return [as_plain(value) for value in recipe]
    return recipe


def as_toml(recipe: Any) -> str:
    """The resolved recipe as TOML: `load_recipe` of it gives an equal recipe."""
    return tomli_w.dumps(as_plain(recipe))


def shown_value(where: str, value: Any) -> str:
    """A value of a plain recipe, as a recipe has it; None is a key that is not given."""
    if isinstance(value, bool):
        return str(value).lower()
    return "not given" if value is None else repr(value)


def differing(
    ours: Any, theirs: Any, shown: Callable[[str, Any], str] = shown_value, where: str = ""
) -> list[str]:
    """The dotted keys in which two plain recipes differ, with both values as `shown` gives them, a line
    each."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = sorted(ours.keys() | theirs.keys())
        pairs = [(_dotted(where, name), ours.get(name), theirs.get(name)) for name in names]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        both = zip(ours, theirs, strict=True)
        pairs = [(f"{where}[{position}]", one, other) for position, (one, other) in enumerate(both)]
    else:
        return (
            [f"{where} is {shown(where, ours)} now and was {shown(where, theirs)}"] if ours != theirs else []
        )
    return [line for name, one, other in pairs for line in differing(one, other, shown, name)]
