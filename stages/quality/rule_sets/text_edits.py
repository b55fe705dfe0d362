"""A page's characters, and edits that reject no page: runs of line feeds, mojibake, lines of marks alone.

- `length`: Dolma 3 drops a page of fewer than 150 characters.
- `newlines`: DCLM and Dolma 3 leave no more than two line feeds in a row.
- `ftfy`: FineWeb-2 mends what a wrong charset made of a text, by ftfy as datatrove calls it
  (formatters/ftfy.py): nothing that only sets one way of writing.
- `symbol_lines`: FineWeb-2 drops lines of `|` and spaces alone, which tables leave; a run of them becomes an empty
  paragraph (datatrove's SymbolLinesFormatter(symbols_to_remove=["|"], replace_char="\\n")).
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from stages.quality.rules import Limits, RuleSet, RuleSpec, Threshold, in_all
from stages.quality.text_view import TextView

_EditedText = tuple[str, tuple[tuple[str, int], ...]]

_SOURCE: Final = "allenai/datamap-rs, configs/all_dressed/all_dressed_config.yaml (Dolma 3)"

_NEWLINES: Final = 2
_MANY_NEWLINES: Final = re.compile(r"\n{3,}")


def _num_chars(view: TextView) -> float:
    return len(view.text)


LENGTH_ROWS: Final = (
    RuleSpec(
        name="length.too_few_chars",
        side="below",
        threshold=Threshold(
            key="min_chars",
            help="characters a page has at least",
            source=_SOURCE,
            unit="characters",
            default=150,
        ),
        help="characters",
        measures=in_all(_num_chars),
    ),
)


def length(limits: Limits) -> RuleSet:
    """The one rule of a page's length."""
    return RuleSet(name="length", rules=tuple(row.rule("dclm", limits) for row in LENGTH_ROWS))


def newlines() -> RuleSet:
    """An edit that counts as one for each run, and the line feeds that went."""
    return RuleSet(name="newlines", rules=(), edit=_without_newlines)


def _without_newlines(view: TextView) -> _EditedText:
    text, num_runs = _MANY_NEWLINES.subn("\n" * _NEWLINES, view.text)
    if not num_runs:
        return text, ()
    return text, (("newlines.runs", num_runs), ("newlines.chars_removed", len(view.text) - len(text)))


@functools.cache
def _ftfy_config() -> Any:
    from ftfy import TextFixerConfig

    return TextFixerConfig(
        unescape_html="auto",
        remove_terminal_escapes=True,
        fix_encoding=True,
        restore_byte_a0=True,
        replace_lossy_sequences=True,
        decode_inconsistent_utf8=True,
        fix_c1_controls=True,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        fix_surrogates=True,
        remove_control_chars=True,
        normalization=None,
    )


def mojibake() -> RuleSet:
    """An edit that counts as one for each line that it changes."""
    return RuleSet(name="ftfy", rules=(), edit=_mended)


def _mended(view: TextView) -> _EditedText:
    import ftfy

    text = ftfy.fix_text(view.text, config=_ftfy_config())
    if text == view.text:
        return text, ()
    before, after = view.text.split("\n"), text.split("\n")
    num_lines = sum(a != b for a, b in zip(before, after, strict=False)) + abs(len(before) - len(after))
    return text, (("ftfy.lines_mended", num_lines),)


_SYMBOLS: Final = frozenset("| ")


def symbol_lines() -> RuleSet:
    """An edit that counts as one for each line that goes, and the characters that went."""
    return RuleSet(name="symbol_lines", rules=(), edit=_without_symbol_lines)


def _without_symbol_lines(view: TextView) -> _EditedText:
    kept: list[str] = []
    num_lines = num_chars = 0
    is_in_run = False
    for line in view.text.splitlines():
        is_of_symbols = "|" in line and _SYMBOLS.issuperset(line)
        if not is_of_symbols:
            kept.append(line)
        else:
            num_lines, num_chars = num_lines + 1, num_chars + len(line)
            if not is_in_run:
                kept.append("\n")
        is_in_run = is_of_symbols
    text = "\n".join(kept)
    if num_lines:
        return text, (("symbol_lines.lines_removed", num_lines), ("symbol_lines.chars_removed", num_chars))
    return text, (("symbol_lines.line_ends", 1),) if text != view.text else ()
