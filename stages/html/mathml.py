"""Presentation MathML, read without a tree, as readable LaTeX: for formulas that bring no LaTeX of their
own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from typing import Final

_MAX_DEPTH: Final = 100
_TOKEN: Final = re.compile(r"<!--|<(/?)(?:[a-zA-Z]{1,8}:)?([a-zA-Z-]+)([^>]*)>|([^<]+)|<")
_LEAVES: Final = frozenset({"mi", "mn", "mo", "mtext", "ms"})
_HIDDEN: Final = frozenset({"mphantom", "annotation", "annotation-xml", "none", "mprescripts"})
_UNSEEN: Final = dict.fromkeys(map(ord, "\u2061\u2062\u2063\u2064\u200b\ufeff"))
_ESCAPED: Final = str.maketrans({char: f"\\{char}" for char in "{}%#&_$"} | {"\\": "\\backslash "})
_FUNCTIONS: Final = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp",
    "lim", "max", "min", "sup", "inf", "det", "dim", "ker", "gcd",
})  # fmt: skip
_ACCENTS: Final = {
    "\u00af": "bar", "\u203e": "bar", "_": "bar", "^": "hat", "\u02c6": "hat", "\u2192": "vec", "\u20d7": "vec",
    "~": "tilde", "\u02dc": "tilde", "\u02d9": "dot", ".": "dot", "\u00a8": "ddot",
}  # fmt: skip
_SIMPLE: Final = re.compile(
    r"\\?[A-Za-z]+|[0-9]+(?:[.,][0-9]+)*|.|\([^()]*\)|\\(?:mathrm|text|sqrt|bar|hat|vec)\{[^{}]*\}"
)


@dataclass(slots=True)
class _Element:
    name: str
    attributes: str = ""
    children: list[str] = field(default_factory=list)


def latex_of_presentation(content: str) -> str | None:
    """The content of a `math` element as LaTeX, which may be empty; None where it nests deeper than formulas
    do."""
    stack = [_Element("math")]
    for token in _TOKEN.finditer(content):
        if token[4] is not None:
            text = " ".join(unescape(token[4]).translate(_UNSEEN).split())
            if text:
                stack[-1].children.append(text)
            continue
        if token[2] is None:
            continue
        name = token[2].lower()
        if not token[1]:
            stack.append(_Element(name, token[3]))
            if len(stack) > _MAX_DEPTH:
                return None
        if token[1] or token[3].endswith("/"):
            # An end tag without its start tag is passed over, and one closes what was left open in it.
            if all(element.name != name for element in stack[1:]):
                continue
            while True:
                element = stack.pop()
                _put(stack[-1], element)
                if element.name == name:
                    break
    while len(stack) > 1:
        element = stack.pop()
        _put(stack[-1], element)
    return _joined(stack[0].children)


def _put(parent: _Element, element: _Element) -> None:
    if element.name not in _HIDDEN:
        parent.children.append(_latex(element))


def _latex(element: _Element) -> str:
    name, parts = element.name, element.children
    if name in _LEAVES:
        return _leaf(name, " ".join(parts))
    if name in ("semantics", "maction"):
        return parts[0] if parts else ""
    if name == "mspace":
        return ""
    need = {
        "mfrac": 2,
        "msup": 2,
        "msub": 2,
        "mover": 2,
        "munder": 2,
        "mroot": 2,
        "msubsup": 3,
        "munderover": 3,
    }
    if len(parts) == need.get(name):
        return _scripted(name, *parts)
    if name == "msqrt":
        return f"\\sqrt{{{_joined(parts)}}}"
    if name == "mtd":
        return _joined(parts)
    if name in ("mtr", "mlabeledtr"):
        return " & ".join(parts)
    if name == "mtable":
        return "\\begin{matrix} " + " \\\\ ".join(parts) + " \\end{matrix}"
    if name == "mfenced":
        return _fenced(element.attributes, parts)
    return _joined(parts)


def _leaf(name: str, text: str) -> str:
    if name in ("mtext", "ms"):
        return f"\\text{{{text.translate(_ESCAPED)}}}" if text else ""
    if name == "mi" and len(text) > 1 and text.isalpha():
        return f"\\{text}" if text in _FUNCTIONS else f"\\mathrm{{{text}}}"
    return text.translate(_ESCAPED)


def _scripted(name: str, first: str, second: str, third: str = "") -> str:
    match name:
        case "mfrac":
            return f"\\frac{{{first}}}{{{second}}}"
        case "mroot":
            return f"\\sqrt[{second}]{{{first}}}"
        case "mover" if second in _ACCENTS or second == "\\_":
            return f"\\{_ACCENTS.get(second, 'bar')}{{{first}}}"
        case "msub" | "munder":
            return f"{_base(first)}_{_argument(second)}"
        case "msup" | "mover":
            return f"{_base(first)}^{_argument(second)}"
        case _:
            return f"{_base(first)}_{_argument(second)}^{_argument(third)}"


def _base(latex: str) -> str:
    return latex if _SIMPLE.fullmatch(latex) or not latex else f"{{{latex}}}"


def _argument(latex: str) -> str:
    return latex if len(latex) == 1 else f"{{{latex}}}"


def _fenced(attributes: str, parts: list[str]) -> str:
    marks = {"open": "(", "close": ")", "separators": ","}
    for name in marks:
        given = re.search(rf"""{name}\s*=\s*(?:"([^"]*)"|'([^']*)')""", attributes)
        if given:
            marks[name] = unescape(given[1] if given[1] is not None else given[2]).strip().translate(_ESCAPED)
    return marks["open"] + (marks["separators"][:1] + " ").lstrip(" ").join(parts) + marks["close"]


def _joined(parts: list[str]) -> str:
    """Parts of a row: a command and a letter behind it are kept apart."""
    row: list[str] = []
    for part in filter(None, parts):
        if row and re.search(r"\\[A-Za-z]+\Z", row[-1][-24:]) and part[:1].isalpha():
            row.append(" ")
        row.append(part)
    return "".join(row)
