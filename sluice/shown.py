"""What a notebook shows of a result: a plain table, whose values are text and never markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from pipeline.terminal import visible


def shown_table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], note: str = ""
) -> str:
    """A table as HTML: whole numbers with commas and to the right, a note below."""
    head = "".join(f'<th style="text-align:left">{_text(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    below = f"<p>{_text(note)}</p>" if note else ""
    return (
        f'<table><caption style="text-align:left;caption-side:top">{_text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
    )


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td style="text-align:right">{value:,}</td>'
    return f'<td style="text-align:left">{"" if value is None else _text(str(value))}</td>'


def _text(value: str) -> str:
    return escape(visible(value))
