"""The text of an HTML file as BeautifulSoup's get_text gives it, once scripts and styles are taken out: what
StarCoder's filter measures (bigcode-project/bigcode-dataset, preprocessing/filtering.py, filter_html).

It is BeautifulSoup 4.15 over the html.parser of Python 3.11.7, written anew, since html.parser takes the
square of hostile markup: it reads damaged tags again from every `<`. Later releases of Python read damaged
markup otherwise. Tests compare the text with BeautifulSoup's own."""

from __future__ import annotations

import re
from collections import Counter
from html.entities import html5
from typing import Final

_VOID: Final = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "keygen", "link", "menuitem", "meta", "param", "source",
    "track", "wbr", "basefont", "bgsound", "command", "frame", "image", "isindex", "nextid", "spacer",
})  # fmt: skip
_NO_TEXT: Final = frozenset({"rt", "rp", "style", "script", "template"})
"""Elements whose text get_text leaves out."""
_KEEPS_SPACE: Final = frozenset({"pre", "textarea"})
_SPACE: Final = frozenset(" \n\t\f\r")

_MARK: Final = re.compile("[&<]")
_ENTITY: Final = re.compile("&([a-zA-Z][-.a-zA-Z0-9]*)[^a-zA-Z0-9]")
_NUMBER: Final = re.compile("&#([0-9]+|[xX][0-9a-fA-F]+)[^0-9a-fA-F]")
_CUT_ENTITY: Final = re.compile("&[a-zA-Z#]")

# The expressions of html.parser. It finds a tag's end by one and reads the attributes by another.
_NAME: Final = r"[a-zA-Z][^\t\n\r\f />\x00]*"
_ATTRIBUTE: Final = r"(?<=['\"\s/])[^\s/>][^\s/=>]*(?:\s*=+\s*(?:'[^']*'|\"[^\"]*\"|(?!['\"])[^>\s]*)"
_WHOLE_TAG: Final = re.compile(rf"<{_NAME}(?:[\s/]*(?:{_ATTRIBUTE}\s*)?(?:\s|/(?!>))*)*)?\s*")
_TAG: Final = re.compile(rf"({_NAME})(?:\s|/(?!>))*(?:{_ATTRIBUTE})?(?:\s|/(?!>))*)*")
_BARE_TAG: Final = re.compile(rf"({_NAME})(?:\s|/(?!>))*")
_CUT_TAG: Final = re.compile("[a-zA-Z=/]|\\Z")
_END_TAG: Final = re.compile(r"</\s*([a-zA-Z][-.a-zA-Z0-9:_]*)\s*>")
_SECTION: Final = re.compile(r"([a-zA-Z][-_.a-zA-Z0-9]*)\s*")

_ENDS: Final = {
    "tag": re.compile(">"),
    "comment": re.compile(r"--\s*>"),
    "section": re.compile(r"]\s*]\s*>"),
    "condition": re.compile(r"]\s*>"),
    "script": re.compile(r"</\s*script\s*>", re.IGNORECASE),
    "style": re.compile(r"</\s*style\s*>", re.IGNORECASE),
}
_SECTIONS: Final = {
    **dict.fromkeys(("temp", "cdata", "ignore", "include", "rcdata"), "section"),
    **dict.fromkeys(("if", "else", "endif"), "condition"),
}
_IN_VAIN: Final = 16
"""How often a character may be looked at, on the mean, by tags that turn out to have no end."""


class NoPageError(ValueError):
    """Markup that html.parser refuses."""


def page_text(html: str) -> str:
    """The text; NoPageError where BeautifulSoup gives none. Each character is looked at a bounded number of
    times: where tags without an end take more, the rest of the file is text."""
    reader = _Reader(html)
    # BeautifulSoup feeds the parser and then closes it. What stops the first loop is met again by the second,
    # and what stops that one ends the markup: the rest is text.
    reader.read(is_closing=False)
    reader.read(is_closing=True)
    return reader.text()


class _Reader:
    """A file on its way through html.parser's loop (`goahead`), and BeautifulSoup's stack of open elements."""

    def __init__(self, html: str) -> None:
        self._html = html
        self._at = 0
        self._raw_in = ""  # the script or style that is open: only its end tag is markup
        self._absent: set[str] = set()  # kinds of ends that are not found any more
        self._left = _IN_VAIN * len(html)
        self._data: list[str] = []
        self._kept: list[str] = []
        self._open: list[str] = []
        self._num_open: Counter[str] = Counter()
        self._num_void: Counter[str] = (
            Counter()
        )  # void elements so far, each of which has one end tag ignored

    def text(self) -> str:
        if self._at < len(self._html) and not self._raw_in:
            self._data.append(self._html[self._at :])
        self._end_data()
        return "".join(self._kept)

    def read(self, *, is_closing: bool) -> None:
        html = self._html
        while self._at < len(html):
            start = self._find(self._raw_in, self._at) if self._raw_in else _MARK.search(html, self._at)
            if start is None and self._raw_in:
                return
            begin, self._at = self._at, len(html) if start is None else start.start()
            if begin < self._at:
                self._data.append(html[begin : self._at])
            if self._at == len(html) or self._left < 0:
                return
            if html[self._at] == "&":
                if not self._read_entity(is_closing):
                    return
                continue
            end = self._read_markup()
            if end < 0:
                if not is_closing:
                    return
                found = self._find("tag", self._at + 1)
                end = html.find("<", self._at + 1) if found is None else found.end()
                end = self._at + 1 if end < 0 else end
                self._data.append(html[self._at : end])
            elif end == self._at:
                return
            self._at = end

    def _find(self, kind: str, at: int) -> re.Match[str] | None:
        if kind in self._absent:
            return None
        found = _ENDS[kind].search(self._html, at)
        if found is None:
            self._absent.add(kind)
        return found

    def _read_entity(self, is_closing: bool) -> bool:
        """Whether the loop goes on."""
        html, at = self._html, self._at
        is_number = html.startswith("&#", at)
        found = (_NUMBER if is_number else _ENTITY).match(html, at)
        if found is not None:
            self._data.append(_character(found[1]) if is_number else _named(found[1]))
            self._at = found.end() - (found[0][-1] != ";")
            return True
        if is_number:
            if html.rfind(";") > at:
                self._data.append("&#")
                self._at += 2
            return False
        if _CUT_ENTITY.match(html, at):
            self._at += is_closing and at + 2 == len(html)
            return False
        if at + 1 == len(html):
            return False
        self._data.append("&")
        self._at += 1
        return True

    def _read_markup(self) -> int:
        """Where the markup ends; -1 where it has no end, and where it begins for the text's last `<`."""
        html, at = self._html, self._at
        follows = html[at + 1 : at + 2]
        if follows.isascii() and follows.isalpha():
            return self._read_start_tag()
        if follows == "/":
            return self._read_end_tag()
        if html.startswith("<!--", at):
            return self._apart("comment", at + 4)
        if html.startswith("<![", at):
            return self._read_section()
        if html[at : at + 9].lower() == "<!doctype":
            return self._apart("tag", at + 9)
        if follows and follows in "?!":
            return self._apart("tag", at + 2)
        if follows:
            self._data.append("<")
            return at + 1
        return at

    def _apart(self, kind: str, begin: int, *, is_text: bool = False) -> int:
        """Markup that is a string of its own, which is no text but in a CDATA section."""
        found = self._find(kind, begin)
        if found is None:
            return -1
        self._end_data()
        if is_text:
            self._kept.append(self._spaced(self._html[begin : found.start()]))
        return found.end()

    def _read_section(self) -> int:
        name = _SECTION.match(self._html, self._at + 3)
        if name is None and self._at + 3 < len(self._html):
            raise NoPageError("a marked section without a name")
        if name is None or name.end() == len(self._html):
            return -1
        if name[1].lower() not in _SECTIONS:
            raise NoPageError(f"a marked section called {name[1]!r}")
        kind = _SECTIONS[name[1].lower()]
        is_text = self._html[self._at + 3 : self._at + 9].upper() == "CDATA["
        if not is_text:
            return self._apart(kind, self._at + 3)
        return self._apart(kind, self._at + 9, is_text=True)

    def _read_start_tag(self) -> int:
        html, at = self._html, self._at
        whole = _WHOLE_TAG.match(html, at)
        assert whole is not None, "it begins with < and a letter"
        end = whole.end()
        if html.startswith((">", "/>"), end):
            end += 1 if html[end] == ">" else 2
        elif _CUT_TAG.match(html, end):
            self._left -= end - at
            return -1
        tag = _TAG.match(html, at + 1)
        assert tag is not None, "it begins with a letter"
        closing = html[tag.end() : end].strip()
        if closing not in (">", "/>"):
            self._data.append(html[at:end])
            return end
        name = tag[1].lower()
        self._end_data()
        if closing == ">" and name in _VOID:
            self._num_void[name] += 1
        elif closing == ">":
            self._open.append(name)
            self._num_open[name] += 1
            self._raw_in = name if name in ("script", "style") else ""
        return end

    def _read_end_tag(self) -> int:
        html, at = self._html, self._at
        closing = self._find("tag", at + 1)
        if closing is None:
            return -1
        found = _END_TAG.match(html, at)
        if found is not None:
            self._raw_in = ""
            self._close(found[1].lower())
            return closing.end()
        bare = _BARE_TAG.match(html, at + 2)
        if bare is not None:
            self._close(bare[1].lower())
            closing = self._find("tag", bare.end())
            return closing.end() if closing is not None else 0
        return at + 3 if html.startswith("</>", at) else self._apart("tag", at + 2)

    def _close(self, name: str) -> None:
        if self._num_void[name]:
            self._num_void[name] -= 1
            return
        self._end_data()
        ended = "" if self._num_open[name] else name
        while ended != name:
            ended = self._open.pop()
            self._num_open[ended] -= 1

    def _end_data(self) -> None:
        if self._data and not self._is_in(_NO_TEXT):
            self._kept.append(self._spaced("".join(self._data)))
        self._data.clear()

    def _spaced(self, text: str) -> str:
        """White space alone is one line feed or one space."""
        if not _SPACE.issuperset(text) or self._is_in(_KEEPS_SPACE):
            return text
        return "\n" if "\n" in text else " "

    def _is_in(self, names: frozenset[str]) -> bool:
        return any(self._num_open[name] for name in names)


def _named(name: str) -> str:
    return html5.get(name, html5.get(f"{name};", f"&{name}"))


def _character(number: str) -> str:
    base, digits = (16, number[1:]) if number[0] in "xX" else (10, number)
    significant = digits.lstrip("0")
    code = int(significant or "0", base) if len(significant) < 9 else 0
    if not 0 < code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    if 0x80 <= code <= 0x9F:
        return bytes([code]).decode("cp1252", errors="replace").replace("\ufffd", chr(code))
    return chr(code)
