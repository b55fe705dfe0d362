"""Errors in the words of the library: a message that names an option, such as `--from`, or asks for a call of a command
names the argument and the function to a caller from Python.

Messages are written once, as the user of a command reads them. What stands in quotes or in a path is left alone."""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from lineage.recipe import RecipeError

P = ParamSpec("P")
R = TypeVar("R")

_OTHER_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "apply": {"--forget-export": "forget_exports"},
    "certify": {"--purge": "purges"},
    "check_certificate": {"--check": "file"},
    "compare_runs": {"--against": "other"},
    "explain": {"--doc": "doc_id"},
    "explain_file": {"--doc": "doc_id"},
    "export": {"--source": "sources"},
    "purge": {
        "--doc": "docs", "--url": "urls", "--host": "hosts", "--domain": "domains", "--from": "listed",
        "--forget-export": "forget_exports",
    },
    "record": {"--run": "runs"},
    "run": {"--from": "from_output"},
    "tune": {"--from": "out", "--examples": "num_examples"},
}  # fmt: skip
"""Of each function, the arguments that are not called as the options of its command are."""
_OVERRIDES: Final = {"--set": "overrides"}
_CALLABLE: Final = ("certify", "commit", "explain", "export", "prove", "purge", "run", "train", "verify")
"""Commands that a message may ask for and that have a function of their name, which takes the same first arguments."""
_LISTS: Final = ("docs", "urls", "hosts", "domains", "sources", "overrides", "forget_exports")
_OF_APPLY: Final[tuple[str, ...]] = ("reason", "by", "forget_exports")
"""What `.apply` takes of a call of `purge`."""
_FLAGS: Final = ("apply", "parsed_texts", "promote_duplicates", "restart", "retokenize")
"""Options that stand without a value."""

_OPTION: Final = r"(?<![\w/'\"-])--[a-z]+(?:-[a-z]+)*"
_VALUE: Final = r"(?:'[^']*'|[A-Z][A-Z_]*\b|…|all\b|[^\s'\",;:()]*[/\d][^\s'\",;:()]*)"
_IN_MESSAGE: Final = re.compile(rf"`?\bsluice ([a-z]+)((?: {_OPTION}| {_VALUE})*)`?|{_OPTION}")
"""A whole call of a command, up to its first word of prose; or an option by itself."""
_OF_TRAINING: Final = ("torch", "tensorboard", "safetensors")


def in_python(function: Callable[P, R]) -> Callable[P, R]:
    """A public function, whose errors speak of its arguments. Where a library of the extra `train` is missing, the
    error says how it is installed."""
    names = names_of(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            say_how_to_install(error, function.__name__)
            raise
        except (ValueError, LookupError, OSError, RuntimeError) as error:
            _say_in_python(error, names)
            raise

    return call


def say_how_to_install(error: ModuleNotFoundError, name: str) -> None:
    """Change the message of an error on a missing library of training, which `sluice.name` needs."""
    if error.name in _OF_TRAINING:
        error.msg = f"sluice.{name} needs {error.name}: in Sluice's checkout, pip install '.[train]'"


def names_of(function: Callable[..., Any]) -> dict[str, str]:
    """The options that a function's errors may name, and the arguments that they are."""
    parameters = inspect.signature(function).parameters
    same = {f"--{name.replace('_', '-')}": name for name in parameters}
    return same | _OVERRIDES | dict(_OTHER_NAMES.get(function.__name__, {}))


def _say_in_python(error: Exception, names: Mapping[str, str]) -> None:
    """Change the message of an error, the notes on it, and its further faults."""
    if error.args and isinstance(error.args[0], str):
        error.args = (python_message(error.args[0], names), *error.args[1:])
    if notes := getattr(error, "__notes__", None):
        notes[:] = [python_message(note, names) for note in notes]
    if isinstance(error, RecipeError):
        for other in error.others:
            _say_in_python(other, names)


def python_message(message: str, names: Mapping[str, str]) -> str:
    """A message with the arguments of `names` for options, and calls of functions for those of commands."""

    def written(found: re.Match[str]) -> str:
        if found[1] is not None:
            return _call(found)
        name = names.get(found[0])
        return found[0] if name is None else f"`{name}`"

    return _IN_MESSAGE.sub(written, message)


def _call(found: re.Match[str]) -> str:
    """The call of a function for a whole call of a command; another command stays as it is."""
    command, words = found[1], shlex.split(found[2])
    if command not in _CALLABLE or not words:
        return found[0]
    named: dict[str, list[str]] = {}
    positional: list[str] = []
    others = _OVERRIDES | dict(_OTHER_NAMES.get(command, {}))
    for word in words:
        if word.startswith("--"):
            named[others.get(word, word[2:].replace("-", "_"))] = []
        else:
            (next(reversed(named.values())) if named else positional).append(_value(word))
    if any(not values and name not in _FLAGS for name, values in named.items()):
        return found[0]
    is_applied = named.pop("apply", None) is not None
    of_apply = {name: named.pop(name) for name in _OF_APPLY if is_applied and name in named}
    call = f"sluice.{command}({', '.join(positional + _arguments(named))})"
    return f"{call}.apply({', '.join(_arguments(of_apply))})" if is_applied else call


def _arguments(named: Mapping[str, list[str]]) -> list[str]:
    return [
        f"{name}=[{', '.join(values)}]" if name in _LISTS else f"{name}={', '.join(values) or 'True'}"
        for name, values in named.items()
    ]


def _value(word: str) -> str:
    """A word as Python writes it; capitals and … are for the reader to fill in."""
    return word if word.isdigit() or word == "…" or re.fullmatch(r"[A-Z][A-Z_]*", word) else repr(word)
