"""Print a script for Tab completion of `sluice`: commands, options, values, files, and the keys of --set.

  sluice completion bash          print the script; also for zsh

Run one of these lines for the current shell. For every shell, add it to ~/.bashrc, or to ~/.zshrc after compinit:
  eval "$(sluice completion bash)"
  eval "$(sluice completion zsh)"

Making the script takes about a second; Tab itself starts no Python. To save that second in each new shell,
keep the script in a file: for bash ~/.local/share/bash-completion/completions/sluice (with the package
bash-completion), for zsh _sluice in a folder of fpath."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from pipeline.cli.arguments import add_json
from pipeline.cli.commands import COMMANDS
from pipeline.cli.printing import print_json

if TYPE_CHECKING:
    from pipeline.recipe_help.keys import Kind

SHELLS: Final = ("bash", "zsh")
_TRAINING: Final = ("train", "mix")
_EITHER: Final = ("recipe", "plan")
"""Commands whose recipe is one of a training, or of either kind; that of the others is a data recipe."""
_RECIPES: Final = ("RECIPE", "A", "B")
_FOLDERS: Final = ("OUT", "DIR", "OUT|RUN_OUTPUT")
_FILES: Final = ("FILE", "FILE.jsonl", "HTML", "SCAN.json", "W.csv", "L.csv", "W2.csv", "L2.csv")
"""The metavars of arguments that are paths."""

_NO_SPACE: Final = """
_sluice_complete() {
  _shtab_sluice "$@"
  [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace
  return 0
}
complete -o bashdefault -F _sluice_complete sluice
"""
"""Readline puts a space behind what it completes, and behind `key=` a value must follow at once. Only the
function that readline calls can ask for none, and shtab's completers of single words run in a process of
their own."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    text = script(options.shell)
    if options.json:
        print_json({"shell": options.shell, "script": text})
    else:
        sys.stdout.write(text)
    return 0


def script(shell: str) -> str:
    """What a shell, one of SHELLS, is to read."""
    import shtab

    made = str(shtab.complete(_whole_parser(), shell=shell))
    return made + _NO_SPACE if shell == "bash" else made


def _whole_parser() -> argparse.ArgumentParser:
    """The parsers of all commands as one. It is made to be looked at, not to parse."""
    from pipeline.jobs.submission import SUBMITTABLE

    parser = argparse.ArgumentParser(prog="sluice")
    parser.add_argument("--version", action="store_true", help="the version of Sluice")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, (_, summary) in COMMANDS.items():
        if " " in name:  # the words of a command of two stand where a recipe does, which completes otherwise
            continue
        # submit takes the options of what it submits beside its own.
        command = commands.add_parser(name, help=summary, conflict_handler="resolve")
        _configure(command, name)
        if name == "submit":
            command._actions.remove(next(action for action in command._actions if action.dest == "command"))
            submitted = command.add_subparsers(metavar="COMMAND")
            for inner in SUBMITTABLE:
                behind = submitted.add_parser(inner, help=COMMANDS[inner][1], conflict_handler="resolve")
                _configure(behind, "submit")
                behind._actions.remove(next(action for action in behind._actions if action.dest == "command"))
                _configure(behind, inner)
    return parser


def _configure(parser: argparse.ArgumentParser, name: str) -> None:
    """Give a parser the arguments of the command `name`, with what completes each."""
    importlib.import_module(COMMANDS[name][0]).configure(parser)
    kinds: tuple[Kind, ...] = (
        ("train",) if name in _TRAINING else ("data", "train") if name in _EITHER else ("data",)
    )
    for action in _actions(parser):
        if completer := _completer(action, kinds):
            action.complete = completer  # type: ignore[attr-defined] # where shtab looks for it


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of those below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)


def _completer(action: argparse.Action, kinds: tuple[Kind, ...]) -> object:
    """What completes the values of an argument, as shtab takes it; None where it has choices or is free
    text."""
    import shtab

    if action.choices is not None:
        return None
    if action.metavar in _RECIPES:
        # To zsh, shtab's single pattern in parentheses is a qualifier.
        return {**shtab.glob("*.toml"), "zsh": "_files -g '*.toml'"}
    if action.metavar in _FOLDERS:
        return shtab.DIRECTORY
    if action.metavar in _FILES:
        return shtab.FILE
    if action.metavar == "KEY=VALUE":
        return _words(f"_sluice_{'_'.join(kinds)}_keys", keys_to_set(kinds), follows="=")
    if action.metavar == "PREFIX":
        return _words("_sluice_prefixes", prefixes(), follows="")
    return None


def _words(name: str, words: Iterable[str], follows: str) -> object:
    """A completer of the function `name` that knows `words`, each with `follows` behind it."""
    listed = " ".join(words)
    in_bash = " ".join(f"{word}{follows}" for word in words)
    return {
        "bash": name,
        "zsh": name,
        "preamble": {
            "bash": f'{name}() {{ compgen -W "{in_bash}" -- "$1"; }}\n',
            "zsh": f"{name}() {{ compadd -S '{follows}' -- {listed}; }}\n",
        },
    }


def keys_to_set(kinds: tuple[Kind, ...]) -> list[str]:
    """The keys of these recipes as --set names them: in a list of tables, those of its first table."""
    from pipeline.recipe_help.keys import recipe_tables

    names = []
    for kind in kinds:
        tables = recipe_tables(kind)
        lists = [table.name for table in tables if table.header.startswith("[[")]
        for key in (key for table in tables for key in table.keys):
            of = next((name for name in lists if key.name.startswith(f"{name}.")), None)
            names.append(f"{of}.0.{key.name.removeprefix(f'{of}.')}" if of else key.name)
    return sorted(set(names))


def prefixes() -> list[str]:
    """What `sluice recipe keys` can be asked for: tables and keys."""
    from pipeline.recipe_help.keys import recipe_keys

    return sorted({name for key in recipe_keys() for name in (key.table, key.name) if name})
