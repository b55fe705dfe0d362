"""Which language a source file is in, as GitHub's Linguist tells it (lib/linguist.rb): by a modeline, the
name, the first line, the extension, and for extensions of several languages by patterns in the text.

The languages and patterns are Linguist's (`linguist/SOURCE.txt`). Its last resort, a classifier trained on
samples, is none of ours: of the languages that are left, the usual one for the extension is taken."""

from __future__ import annotations

import functools
import importlib.resources
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from stages.document import Document
from stages.linear import linear

_PATTERN_BYTES: Final = 51_200
"""What patterns look at of a file's beginning (HEURISTICS_CONSIDER_BYTES)."""
_HEAD_CHARS: Final = 8_192
"""What modelines and first lines are looked for in, at both ends: a line may be a megabyte."""
_LINES: Final = 5

_USUAL: Final = {
    ".asc": "asciidoc", ".ash": "ags-script", ".bas": "visual-basic-6.0", ".bb": "bitbake", ".bf": "brainfuck",
    ".cfg": "ini", ".cl": "common-lisp", ".cls": "tex", ".cp": "cpp", ".ddl": "sql", ".e": "eiffel",
    ".es": "javascript", ".f": "fortran", ".for": "fortran", ".frag": "glsl", ".frm": "visual-basic-6.0",
    ".fx": "hlsl", ".gs": "javascript", ".inc": "php", ".jq": "jq", ".k": "kframework", ".m": "matlab", ".prc": "sql",
    ".pro": "prolog", ".properties": "java-properties", ".rsc": "rascal", ".s": "assembly", ".sch": "kicad-schematic",
    ".t": "perl", ".v": "verilog", ".w": "cweb",
}  # fmt: skip
"""What an extension of several languages names where no pattern is found, if not the first language whose
first extension it is."""
_GENERIC: Final = frozenset({
    ".1", ".2", ".3", ".4", ".5", ".6", ".7", ".8", ".9", ".action", ".alg", ".app", ".cmp", ".msg", ".network",
    ".resource", ".sol", ".srv", ".stl", ".tag", ".target", ".url",
})  # fmt: skip
"""Extensions too common to name a language without a pattern (generic.yml)."""

_MAN_PAGE: Final = re.compile(r"\.(?:[1-9](?![0-9])[a-z_0-9]*|0p|n|man|mdoc)(?:\.in)?\Z")
_INTERPRETER: Final = re.compile(r"#!\s*+(\S++)(.*)")
_ENV_OPTION: Final = re.compile(r"(?:-[i0uCSv]*|--\S+|\S+=\S+)\Z")
_VERSION: Final = re.compile(r"\.\d+\Z")
_EXEC: Final = re.compile(r"exec (\w{1,64})[\s\"']{1,64}\$0[\s\"']{1,64}\$@")
_EMACS: Final = linear(
    rb"-\*-(?:[ \t]*([^:;\s]+?)[ \t]*|(?:.*?[ \t;])?[ \t]*(?i:mode)[ \t]*:[ \t]*([^:;\s]+?)(?:[ \t;].*?)?)-\*-"
)
_VIM: Final = linear(
    rb"(?m)(?:(?:^|[ \t])(?:vi(?:m(?:[<=>]?[0-9]+)?)?|Vim(?:[<=>]?[0-9]+)?)|[ \t]ex):(?:[^\r\n]*[ \t:])?"
    rb"(?:filetype|ft|syntax)[ \t]*=(\w+)(?:$|\s|:)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    expression: str
    must_be_found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linguist:
    """Languages by what names them: extensions and aliases in lower case, file names as they are."""

    names: frozenset[str]
    by_extension: Mapping[str, Sequence[str]]
    by_file_name: Mapping[str, Sequence[str]]
    by_interpreter: Mapping[str, Sequence[str]]
    by_alias: Mapping[str, str]
    first_extensions: Mapping[str, str]
    rules: Mapping[str, Sequence[tuple[Sequence[str], Sequence[_Pattern]]]]
    """By extension, in order."""


@functools.cache
def _linguist() -> _Linguist:
    by_extension: dict[str, list[str]] = {}
    by_file_name: dict[str, list[str]] = {}
    by_interpreter: dict[str, list[str]] = {}
    by_alias: dict[str, str] = {}
    firsts: dict[str, str] = {}
    for name, _, extensions, file_names, interpreters, aliases in _rows("languages.jsonl"):
        for index, keys in (
            (by_extension, [extension.lower() for extension in extensions]),
            (by_file_name, file_names),
            (by_interpreter, interpreters),
        ):
            for key in dict.fromkeys(keys):
                index.setdefault(key, []).append(name)
        by_alias |= dict.fromkeys(aliases, name)
        firsts[name] = extensions[0].lower() if extensions else ""
    rules = {
        extension: [
            (languages, [_Pattern(expression=each, must_be_found=found) for each, found in patterns])
            for languages, patterns in of_extensions
        ]
        for extensions, of_extensions in _rows("heuristics.jsonl")
        for extension in extensions
    }
    return _Linguist(
        names=frozenset(firsts),
        by_extension=by_extension,
        by_file_name=by_file_name,
        by_interpreter=by_interpreter,
        by_alias=by_alias,
        first_extensions=firsts,
        rules=rules,
    )


def _rows(name: str) -> list[Any]:
    folder = importlib.resources.files("stages.quality.code.linguist")
    return [json.loads(row) for row in folder.joinpath(name).read_text(encoding="utf-8").splitlines()]


def languages() -> frozenset[str]:
    """Every language that a file may be in."""
    return _linguist().names


def path_of(document: Document) -> str:
    """The path of a source file: that of the document's URL, or else what its id_field holds."""
    if document.url is None:
        return document.record_id or ""
    address = document.url.partition("#")[0].partition("?")[0]
    return unquote(address.partition("://")[2].partition("/")[2] if "://" in address else address)


def language_of(path: str, text: str) -> str | None:
    """The language of a file of this path and text; None where nothing tells it."""
    name = posixpath.basename(path.replace("\\", "/"))
    known = _linguist()
    if (found := known.by_alias.get(_modeline(text))) is not None:
        return found
    extension = _extension(name.lower())
    candidates: Sequence[str] = ()
    for found_by in (
        known.by_file_name.get(name, ()),
        known.by_interpreter.get(_interpreter(text), ()),
        known.by_extension.get(extension, ()) if extension not in _GENERIC else (),
    ):
        among = [each for each in found_by if not candidates or each in candidates]
        if len(among) == 1:
            return among[0]
        candidates = among or candidates
    is_xml = "<?xml version=" in "\n".join(text[:_HEAD_CHARS].split("\n", 2)[:2])
    if not candidates and is_xml:
        return "xml"
    if not candidates and _MAN_PAGE.search(name.lower()):
        candidates = ("roff-manpage", "roff")
    candidates = _by_patterns(name.lower(), text) or candidates
    if is_xml and "xml" in candidates:
        return "xml"
    usual = _USUAL.get(extension)
    if usual in candidates:
        return usual
    firsts = (each for each in candidates if known.first_extensions[each] == extension)
    return next(firsts, candidates[0] if candidates else None)


def _extension(name: str) -> str:
    """The longest that is a language's: `a.blade.php` has .blade.php."""
    return next((each for each in _endings(name) if each in _linguist().by_extension), "")


def _by_patterns(name: str, text: str) -> Sequence[str]:
    rules = _linguist().rules
    own = next((rules[each] for each in _endings(name) if each in rules), ())
    head = text[:_PATTERN_BYTES].encode(errors="replace")[:_PATTERN_BYTES] if own else b""
    for of_rule, patterns in own:
        if all(
            (_compiled(each.expression).search(head) is not None) == each.must_be_found for each in patterns
        ):
            return of_rule
    return ()


def _endings(name: str) -> list[str]:
    parts = name.split(".")
    return ["." + ".".join(parts[at:]) for at in range(1, len(parts))]


@functools.cache
def _compiled(expression: str) -> Any:
    return linear(f"(?m){expression}".encode())


def _interpreter(text: str) -> str:
    """What a first line such as `#!/usr/bin/env python3` names."""
    lines = text[:_HEAD_CHARS].split("\n", _LINES)[:_LINES]
    found = _INTERPRETER.match(lines[0])
    if found is None:
        return ""
    script = found[1].rpartition("/")[2]
    if script == "env":
        words = (word for word in found[2].split() if not _ENV_OPTION.match(word))
        script = next(words, "")
    script = _VERSION.sub("", script)
    if script == "sh" and (run := _EXEC.search("\n".join(lines))) is not None:
        script = run[1]
    return script.rpartition("/")[2]


def _modeline(text: str) -> str:
    """The language that a line for Emacs or Vim names, in lower case; empty where there is none."""
    if "-*-" not in text and "=" not in text:
        return ""
    head = "\n".join(text[:_HEAD_CHARS].split("\n", _LINES)[:_LINES])
    if "UseVimball" in head:
        return ""
    tail = "\n".join(text[-_HEAD_CHARS:].rsplit("\n", _LINES)[-_LINES:])
    both = f"{head}\n{tail}".encode(errors="replace")
    found = next((found for mode in (_EMACS, _VIM) if (found := mode.search(both)) is not None), None)
    return (
        "" if found is None else (found[1] or found[found.re.groups] or b"").decode(errors="replace").lower()
    )
