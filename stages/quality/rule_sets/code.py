"""Rules for source files: those of The Stack, StarCoder and The Stack v2, with thresholds by programming
language.

- Lines, letters and digits: Lozhkov et al. 2024 (StarCoder 2 and The Stack v2), section 3.1, which refines
  Kocetkov et al. 2022 (The Stack) and bigcode-project/bigcode-dataset, preprocessing/filtering.py: the
  longest and the mean line, the number of lines, the shares of alphabetic and alphanumeric characters.
- Encoded data: the same, by its three expressions: base64 of 64 characters or more, 8 hexadecimal bytes or
  more in a row, 8 escapes of Unicode or more.
- Generated files: `stages/quality/code/generated.py`.
- XML behind another extension, and the visible share of HTML: StarCoder's filters (Li et al. 2023, section
  3.3; filter_xml and filter_html of filtering.py). What is visible is what BeautifulSoup's get_text gives:
  `stages/quality/code/page_text.py`.
- Text files: only those that document something by their name (Lozhkov et al. 2024, section 3.1).

`notebooks` is an edit: a notebook becomes its cells.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

from stages.quality.code.generated import is_generated
from stages.quality.code.notebooks import NoNotebookError, cells
from stages.quality.code.page_text import NoPageError, page_text
from stages.quality.offending import lines_that
from stages.quality.rules import Limits, RuleSet, RuleSpec, Threshold, Variant, in_all
from stages.quality.text_view import TextView, all_lines, share
from stages.rules import Lines

_STACK: Final = "Lozhkov et al. 2024 (StarCoder 2 and The Stack v2), section 3.1"
_STARCODER: Final = "Li et al. 2023 (StarCoder), section 3.3"
_MARKUP: Final = ("html", "json", "markdown", "roff", "roff-manpage", "smt", "tex", "text", "xml")
_DATA: Final = ("dot", "json", "owl", "text", "yaml")
_WITHOUT_LETTERS: Final = ("motorola-68k", "webassembly")

_EditedText = tuple[str, tuple[tuple[str, int], ...]]

# Possessive, so that none of these gives back what it matched: each is linear in a hostile file.
_ENCODED: Final = (
    re.compile(r"[a-zA-Z0-9+/\n=]{64,}+"),
    re.compile(r"(?:\b(?:0x|\\x)?[0-9a-fA-F]{2}(?:,|\b\s*+)){8,}+"),
    re.compile(r"(?:\\u[0-9a-fA-F]{4}){8,}+"),
)
_XML_HEAD_CHARS: Final = 100
_OF_XML: Final = frozenset({"xml", "xslt", "svg", "owl"})
_DOCUMENTS: Final = frozenset({"readme", "notes", "todo", "description", "cmakelists"})


def _num_lines(view: TextView) -> float:
    return len(view.once(all_lines))


def _longest_line(view: TextView) -> float:
    return max(map(len, view.once(all_lines)), default=0)


def _mean_line(view: TextView) -> float:
    lines = view.once(all_lines)
    return share(sum(map(len, lines)), len(lines))


def _alphabetic(view: TextView) -> float:
    return share(sum(map(str.isalpha, view.text)), len(view.text))


def _alphanumeric(view: TextView) -> float:
    return share(sum(map(str.isalnum, view.text)), len(view.text))


def _encoded(view: TextView) -> tuple[int, int]:
    """The longest run of encoded data, and the characters of all runs of the kind that has most."""
    longest = most = 0
    for expression in _ENCODED:
        lengths = [end - start for start, end in (found.span() for found in expression.finditer(view.text))]
        longest, most = max(longest, *lengths, 0), max(most, sum(lengths))
    return longest, most


def _longest_encoded(view: TextView) -> float:
    return view.once(_encoded)[0]


def _share_encoded(view: TextView) -> float:
    return share(view.once(_encoded)[1], len(view.text))


def _is_generated(view: TextView) -> float:
    return is_generated(view.text, view.path)


def _has_xml_head(view: TextView, *, language: str) -> float:
    return language not in _OF_XML and "<?xml version=" in view.text[:_XML_HEAD_CHARS]


def _visible(view: TextView) -> int:
    """The visible characters of a page; none of what BeautifulSoup refuses."""
    try:
        return len(page_text(view.text))
    except NoPageError:
        return 0


def _visible_chars(view: TextView) -> float:
    return view.once(_visible)


def _visible_share(view: TextView) -> float:
    return share(view.once(_visible), len(view.text))


def _is_no_document(view: TextView, *, language: str) -> float:
    if language != "text" or not view.path:
        return False
    name = posixpath.basename(view.path.replace("\\", "/")).lower()
    return "requirement" not in name and posixpath.splitext(name)[0] not in _DOCUMENTS


def _mark_encoded(variant: Variant) -> Lines:
    return lines_that(lambda line: any(expression.search(line) for expression in _ENCODED))


ROWS: Final = (
    RuleSpec(
        name="code.too_many_lines",
        side="above",
        threshold=Threshold(
            key="code_max_lines",
            help="lines a source file has at most (512 of data formats)",
            source=_STACK,
            unit="lines",
            default=100_000,
            by_language=dict.fromkeys(_DATA, 512),
        ),
        help="lines of a source file",
        measures=in_all(_num_lines),
    ),
    RuleSpec(
        name="code.line_too_long",
        side="above",
        threshold=Threshold(
            key="code_max_line_chars",
            help="characters of a source file's longest line, at most (100,000 of markup and data)",
            source=_STACK,
            unit="characters",
            default=1000,
            by_language=dict.fromkeys(_MARKUP, 100_000),
        ),
        help="characters of the longest line",
        measures=in_all(_longest_line),
        lines=lambda variant: lines_that(lambda line: len(line) > _SHOWN_LINE),
    ),
    RuleSpec(
        name="code.lines_too_long",
        side="above",
        threshold=Threshold(
            key="code_max_mean_line_chars",
            help="mean characters of a source file's lines, at most (off for markup and data)",
            source=_STACK,
            unit="characters",
            default=100,
            by_language=dict.fromkeys(_MARKUP),
        ),
        help="mean characters of a line",
        measures=in_all(_mean_line),
        lines=lambda variant: lines_that(lambda line: len(line) > _SHOWN_LINE),
    ),
    RuleSpec(
        name="code.too_little_alphabetic",
        side="below",
        threshold=Threshold(
            key="code_min_alphabetic",
            help="share of a source file's characters that are letters",
            source=_STACK,
            default=0.25,
            by_language=dict.fromkeys(_WITHOUT_LETTERS),
        ),
        help="share of characters that are letters",
        measures=in_all(_alphabetic),
    ),
    RuleSpec(
        name="code.too_little_alphanumeric",
        side="below",
        threshold=Threshold(
            key="code_min_alphanumeric", help="share that are letters or digits", source=_STACK, default=0.25
        ),
        help="share of characters that are letters or digits",
        measures=in_all(_alphanumeric),
    ),
    RuleSpec(
        name="code.encoded_run",
        side="above",
        threshold=Threshold(
            key="code_max_encoded_chars",
            help="characters of the longest run of base64, hexadecimal bytes or escapes",
            source=_STACK,
            unit="characters",
            default=1024,
        ),
        help="characters of the longest run of base64, hexadecimal bytes or escapes of Unicode",
        measures=in_all(_longest_encoded),
        lines=_mark_encoded,
    ),
    RuleSpec(
        name="code.too_much_encoded",
        side="above",
        threshold=Threshold(
            key="code_max_encoded",
            help="share of a source file's characters in such runs",
            source=_STACK,
            default=0.5,
        ),
        help="share of characters in such runs of one kind",
        measures=in_all(_share_encoded),
        lines=_mark_encoded,
    ),
    RuleSpec(name="code.generated", help="a file that a program wrote", measures=in_all(_is_generated)),
    RuleSpec(
        name="code.xml_head",
        help="`<?xml version=` in the first 100 characters of a file that is not called XML",
        measures=in_all(_has_xml_head),
    ),
    RuleSpec(
        name="code.too_little_visible_text",
        side="at most",
        threshold=Threshold(
            key="code_min_visible_chars",
            help="visible characters of an HTML file",
            source=_STARCODER,
            unit="characters",
            default=None,
            by_language={"html": 100},
        ),
        help="characters of HTML that BeautifulSoup's get_text gives without scripts and styles",
        measures=in_all(_visible_chars),
    ),
    RuleSpec(
        name="code.too_small_visible_share",
        side="at most",
        threshold=Threshold(
            key="code_min_visible",
            help="share of an HTML file's characters that are visible",
            source=_STARCODER,
            default=None,
            by_language={"html": 0.2},
        ),
        help="share of HTML's characters that are so",
        measures=in_all(_visible_share),
    ),
    RuleSpec(
        name="code.no_documentation",
        help="a text file whose name says neither readme, notes, todo, description, cmakelists nor requirements",
        measures=in_all(_is_no_document),
    ),
)

_SHOWN_LINE: Final = 200
"""Lines from which on a line is marked: it is about twice as long as the mean may be."""
_ASK_FOR_LANGUAGE: Final = ("code.xml_head", "code.no_documentation")


def rule_set(limits: Limits, language: str) -> RuleSet:
    """The rules in order, for files in one language (empty: in whichever)."""
    given = {name: {"language": language} for name in _ASK_FOR_LANGUAGE}
    rules = (row.rule("code", limits, **given.get(row.name, {})) for row in ROWS if row.is_in("code", limits))
    return RuleSet(name="code", rules=tuple(rules))


_NO_NOTEBOOK: Final = RuleSpec(
    name="notebooks.unreadable",
    help="a file called .ipynb that is no notebook, or has no cell with anything in it",
    measures=in_all(lambda view: _is_notebook(view) and not view.once(_cells)[1]),
)


def notebooks() -> RuleSet:
    """A rule, and an edit that counts the cells that stay and the characters that went."""
    return RuleSet(name="notebooks", rules=(_NO_NOTEBOOK.rule("code", {}),), edit=_with_cells)


def _is_notebook(view: TextView) -> bool:
    return view.path.lower().endswith(".ipynb")


def _cells(view: TextView) -> tuple[str, int]:
    try:
        return cells(view.text)
    except NoNotebookError:
        return "", 0


def _with_cells(view: TextView) -> _EditedText:
    if not _is_notebook(view):
        return view.text, ()
    text, num_cells = view.once(_cells)
    return text, (
        ("notebooks.cells", num_cells),
        ("notebooks.chars_removed", max(0, len(view.text) - len(text))),
    )
