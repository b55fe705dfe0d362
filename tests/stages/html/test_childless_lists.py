"""Lists without children do not indent what follows by more and more, where there are many."""

from __future__ import annotations

import pytest
from resiliparse.extract.html2text import extract_plain_text

from stages.html.extraction import Extractor, extract

FAST = Extractor(name="resiliparse", favor="balance", fast=True, timeout_seconds=60)
WORDS = "<p>Some words at the page's beginning.</p>"


def page(content: str) -> str:
    return f"{WORDS}<table><tr><td>{content}</td></tr></table>"


@pytest.mark.parametrize("name", ["ul", "ol", "UL", "ul class=x"])
@pytest.mark.parametrize("number", [100, 3_000, 11_000])
def test_many_lists_without_children_make_no_text_longer_than_their_page(name: str, number: int) -> None:
    written = page(f"<{name}></{name.split(maxsplit=1)[0]}>word " * number)
    text = extract(written, FAST)
    assert isinstance(text, str) and len(text) < len(written) and text.count("word\n") >= number - 1


def test_lists_that_end_with_their_cell_count_too() -> None:
    written = f"{WORDS}<table>{'<tr><td><ul></td><td>word</td></tr>' * 3_000}</table>"
    text = extract(written, FAST)
    assert isinstance(text, str) and len(text) < len(written)


@pytest.mark.parametrize(
    "written",
    [
        page("<ul></ul>word " * 3),
        page("<ul><li>an item<li>another<ul><li>in it</ul></ul><ol><li>first<li>second</ol>"),
        f"<ul>{'<li>an item</li>' * 25_000}</ul>",
        page("<p>a paragraph</p><ul><li>x</li></ul>" * 9_000),
    ],
)
def test_of_other_pages_the_text_is_as_it_was(written: str) -> None:
    assert extract(written, FAST) == extract_plain_text(written, main_content=True, alt_texts=False)
