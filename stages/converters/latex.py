"""The text of a paper's LaTeX sources, by pylatexenc. Formulas stay as they are written, in dollars.

The files of a paper are one file or a tar archive. Its main file is one with \\documentclass and a beginning of the
document; what it inputs is put in its place, from the archive alone."""

from __future__ import annotations

import functools
import io
import posixpath
import re
import string
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stages.converters.converter import MAX_MARKUP, Converted, RefusedError
from stages.reading.charsets.charset import decode_text
from stages.reading.papers import TEX_ENDINGS

_MAX_FILES: Final = 20_000
_DEEPEST_INPUT: Final = 20
_MAIN: Final = re.compile(r"^[^%\n]*\\document(?:class|style)\b", re.MULTILINE)
_COST: Final = 12
"""Of a character, as MAX_MARKUP counts: pylatexenc takes a second for 200,000 at least."""
_BEGIN: Final = r"\begin{document}"
_END: Final = r"\end{document}"
_INPUT: Final = re.compile(
    # A comment takes the end of its line with it, and blanks before the next, but no blank line (TeXbook, chapter 8).
    r"\\[\\%]|(?P<comment>%[^\n]*(?:\n[ \t]*(?=[^\s]))?)"
    r"|\\(?:input|include|subfile)\s*\{(?P<braced>[^{}\n]{1,200})\}|\\input[ \t]+(?P<plain>[\w./-]{1,200})"
    r"|\\(?:url|nolinkurl|path|href)\s*\{(?P<address>[^{}\n]{1,2000})\}"
    r"|\\(?:verb\*?|lstinline)(?P<mark>[^\w\s*\[{])(?P<code>[^\n]{0,500}?)(?P=mark)"
    r"|\\begin\{(?P<environment>[vV]erbatim\*?|lstlisting|minted|comment)\}"
    r"(?:\[[^\[\]\n]{0,500}\])?(?:(?<=minted\})\{[^{}\n]{1,50}\})?"
)
_MACRO_ENDS: Final = re.compile(r"\\[A-Za-z@]+\Z")
_LONGEST_MACRO: Final = 50
_AS_WRITTEN: Final = {ord(each): 0x10FF00 + ord(each) for each in string.punctuation}
"""Characters for private use that stand for those of code and addresses, which are no markup there."""
_READ_AGAIN: Final = {stand_in: character for character, stand_in in _AS_WRITTEN.items()}
_TITLE: Final = re.compile(r"\\title\s*(?:\[[^\[\]]{0,500}\]\s*)?\{")
_MAX_TITLE: Final = 1_000
_BLANK_LINES: Final = re.compile(r"\n\s*\n")
_HEADINGS: Final = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph", "subparagraph")
_LEFT_OUT: Final = (
    "addtocounter", "author", "autocite", "autoref", "bibliography", "bibliographystyle", "cite", "Cite", "citealp",
    "citealt", "citeauthor", "citep", "citet", "citeyear", "cref", "Cref", "date", "eqref", "fontsize", "footcite",
    "hspace", "include", "includegraphics", "input", "label", "maketitle", "nameref", "nocite", "pageref", "pagestyle",
    "parencite", "ref", "rule", "setcounter", "setlength", "textcite", "thanks", "thispagestyle", "title", "today",
    "vref", "vspace",
)  # fmt: skip
"""Macros without a text: by default the library has `<cit.>` for a citation, and for \\today the day."""
_ARGUMENTS: Final = {
    "*[[{": ("autocite", "Cite", "footcite", "parencite", "textcite"),
    "*[{": ("paragraph", "part"),
    "[{{": ("rule",),
    "{": (
        "bibliographystyle",
        "nameref",
        "nocite",
        "pageref",
        "pagestyle",
        "thanks",
        "thispagestyle",
        "vref",
    ),
    "{{": ("addtocounter", "fontsize", "href"),
    "{{{": ("multicolumn", "multirow", "resizebox"),
}
"""Which arguments macros have that the library's parser does not know: without, they would be text."""
_ARE_LAST: Final = ("href", "multicolumn", "multirow", "resizebox", "textcolor")
"""Macros whose last argument is the text."""
_GONE: Final = "\0"
_WITH_SPACE: Final = re.compile(r"[ \xa0]*\0")
_SPACES: Final = re.compile(r"[ \t]+")


def latex_text(payload: bytes, max_bytes: int) -> Converted:
    """The text and the title. RefusedError if files that input one another make more than `max_bytes` characters; if
    there is no main file, or the archive cannot be read."""
    files = _files(payload)
    mains = [name for name, text in files.items() if _MAIN.search(text) and _BEGIN in text]
    if not mains:
        raise RefusedError("damaged")
    whole = {name: _flattened(name, files, max_bytes) for name in sorted(mains)}
    source = max(whole.values(), key=len)  # others are supplements, answers to referees, examples of a class
    preamble, _, rest = source.partition(_BEGIN)
    body = rest.partition(_END)[0]
    if (markup := _COST * len(source)) > MAX_MARKUP:
        raise RefusedError("too_much_markup", float(markup))
    title = _title(preamble) or _title(body)
    text = _plain(body)
    if title and title not in text[: 2 * _MAX_TITLE]:
        text = f"{title}\n\n{text}"
    return Converted(text=text, title=title or None)


def _files(payload: bytes) -> dict[str, str]:
    """The sources by their paths; a payload that is no archive is one."""
    if payload[257:262] != b"ustar" and not _is_tar(payload):
        return {"main.tex": _decoded(payload)}
    files: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(payload), mode="r:") as archive:
            for number, member in enumerate(archive):
                if number == _MAX_FILES:
                    raise RefusedError("damaged")
                # Links lead nowhere, and a sparse file may be as long as it likes.
                if not member.isreg() or member.issparse() or not member.name.lower().endswith(TEX_ENDINGS):
                    continue
                begin = member.offset_data
                files[posixpath.normpath(member.name)] = _decoded(payload[begin : begin + member.size])
            # Where the library sees no header, it takes the archive for ended.
            if payload[archive.offset :][: tarfile.BLOCKSIZE].strip(b"\0"):
                raise RefusedError("damaged")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise RefusedError("damaged") from error
    return files


def _is_tar(payload: bytes) -> bool:
    """Whether a payload is an archive in the format before POSIX, which has no mark."""
    try:
        tarfile.TarInfo.frombuf(payload[:512], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _decoded(data: bytes) -> str:
    text = decode_text(data, is_html=False)[0]
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _flattened(main: str, files: Mapping[str, str], max_chars: int) -> str:
    """A file with what it inputs, without comments. Paths are relative to the main file's folder, as for TeX; one that
    leads out of the archive, to a file that is not there or to one that is being read is left out."""
    folder = posixpath.dirname(main)
    left = max_chars

    def pieces(name: str, around: tuple[str, ...]) -> Iterator[str]:
        nonlocal left
        text, at = files[name], 0
        left -= len(text)  # files that input others twice, and these too, unfold to any length
        if left < 0:
            raise RefusedError("too_large")
        endless = set[str]()
        while (found := _INPUT.search(text, at)) is not None:
            start, at, kind = at, found.end(), found.lastgroup
            yield text[start : found.start()]
            match kind:
                case "comment":
                    # `\macro%` and the letters of the next line are no longer name.
                    if _MACRO_ENDS.search(text, max(found.start() - _LONGEST_MACRO, 0), found.start()):
                        yield " "
                case "braced" | "plain":
                    inner = _resolved(folder, found[kind].strip(), files)
                    if inner is not None and inner not in around and len(around) < _DEEPEST_INPUT:
                        yield from pieces(inner, (*around, inner))
                case "address":
                    begin, end = (each - found.start() for each in found.span(kind))
                    yield found[0][:begin] + found[kind].translate(_AS_WRITTEN) + found[0][end:]
                case "code":
                    yield found[kind].translate(_AS_WRITTEN)
                case "environment":
                    name = found[kind]
                    end = -1 if name in endless else text.find(f"\\end{{{name}}}", at)
                    if end < 0:
                        endless.add(name)
                        yield found[0]
                        continue
                    if name != "comment":
                        yield text[at:end].translate(_AS_WRITTEN)
                    at = end + len(f"\\end{{{name}}}")
                case _:
                    yield found[0]
        yield text[at:]

    return "".join(pieces(main, (main,)))


def _resolved(folder: str, given: str, files: Mapping[str, str]) -> str | None:
    path = posixpath.normpath(posixpath.join(folder, given))
    return next((name for name in (f"{path}.tex", path) if name in files), None)


def _title(source: str) -> str:
    found = _TITLE.search(source)
    if found is None:
        return ""
    depth = 1
    for at in range(found.end(), min(found.end() + _MAX_TITLE, len(source))):
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        if not depth:
            return " ".join(_plain(source[found.end() : at]).split())
    return ""


def _plain(source: str) -> str:
    from pylatexenc.latexwalker import LatexWalker, LatexWalkerParseError

    parsed, texts = _library()
    try:
        nodes, _, _ = LatexWalker(source, latex_context=parsed, tolerant_parsing=True).get_latex_nodes()
        text = texts.nodelist_to_text(nodes)
    except (LatexWalkerParseError, RecursionError) as error:
        raise RefusedError("damaged") from error
    text = _SPACES.sub(" ", _WITH_SPACE.sub("", text)).translate(_READ_AGAIN)
    return _BLANK_LINES.sub("\n\n", "\n".join(line.strip() for line in text.split("\n"))).strip()


@functools.cache
def _library() -> tuple[Any, Any]:
    """What pylatexenc parses macros by, and what makes a text of them: with other headings, and without what its
    defaults say of citations, figures and the day."""
    from pylatexenc import latexwalker
    from pylatexenc.latex2text import (
        EnvironmentTextSpec,
        LatexNodes2Text,
        MacroTextSpec,
        get_default_latex_context_db,
    )
    from pylatexenc.macrospec import MacroSpec

    parsed, context = latexwalker.get_default_latex_context_db(), get_default_latex_context_db()
    parsed.add_context_category(
        "sluice",
        prepend=True,
        macros=[MacroSpec(name, arguments) for arguments, names in _ARGUMENTS.items() for name in names],
    )
    context.add_context_category(
        "sluice",
        prepend=True,
        macros=[
            *(MacroTextSpec(name, simplify_repl=_heading) for name in _HEADINGS),
            *(MacroTextSpec(name, simplify_repl=_GONE) for name in _LEFT_OUT),
            *(MacroTextSpec(name, simplify_repl=_last_argument) for name in _ARE_LAST),
            *(MacroTextSpec(name, simplify_repl=name) for name in ("LaTeX", "TeX")),
            MacroTextSpec("item", simplify_repl="\n- "),
            MacroTextSpec("footnote", simplify_repl=" (%(2)s)"),
        ],
        environments=[EnvironmentTextSpec("thebibliography", simplify_repl="", discard=True)],
    )
    return parsed, LatexNodes2Text(latex_context=context, math_mode="verbatim", strict_latex_spaces=False)


def _heading(node: Any, l2tobj: Any) -> str:
    return f"\n\n{_last_argument(node, l2tobj).strip()}\n\n"


def _last_argument(node: Any, l2tobj: Any) -> str:
    """The text of a macro's last argument, if any was found."""
    given = [] if node.nodeargd is None else node.nodeargd.argnlist
    return str(l2tobj.nodelist_to_text([each for each in given if each is not None][-1:]))
