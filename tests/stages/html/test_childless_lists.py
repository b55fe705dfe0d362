"""Neither lists without children nor those in very many others indent what follows by more and more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from resiliparse.extract.html2text import extract_plain_text

from stages.html.extraction import Extractor, extract

pytestmark = pytest.mark.differential("stages/html")

FAST = Extractor(name="resiliparse", favor="balance", fast=True, timeout_seconds=60)
SENTENCE = "The keeper of the harbour wrote that it was quiet and the boats came home before the rain."
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


@pytest.mark.parametrize(("begin", "end"), [("<ul>", "</ul>"), ("<ol><li>x", "</li></ol>")])
@pytest.mark.parametrize("number", [1_000, 11_000])
def test_items_in_hundreds_of_lists_are_indented_as_in_the_deepest_that_counts(
    begin: str, end: str, number: int
) -> None:
    items = "".join(f"<li>item {item}</li>" for item in range(number))
    text = extract(page_of_lists(begin * 450, items, end * 450), FAST)
    assert isinstance(text, str)
    lines = [line for line in text.splitlines() if "item " in line]
    assert [line.split("item ")[1] for line in lines] == [str(item) for item in range(number)]
    assert max(len(line) - len(line.lstrip()) for line in lines) == 2 * 32


def test_trafilatura_indents_no_further_either() -> None:
    items = "".join(f"<li>{SENTENCE} {item}</li>" for item in range(200))
    written = (
        f"<html><body><p>{SENTENCE}</p>{'<ul>' * 100}{items}{'</ul>' * 100}<p>{SENTENCE}</p></body></html>"
    )
    text = extract(written, replace(FAST, name="trafilatura", fast=False))
    assert isinstance(text, str) and text.count(f"- {SENTENCE}") == 200
    assert max(len(line) - len(line.lstrip()) for line in text.splitlines()) == 2 * 32


def page_of_lists(begin: str, items: str, end: str) -> str:
    around = f"<p>{SENTENCE}</p>"
    return f"<html><body><main><article><div>{around}{begin}{items}{end}{around}</div></article></main></body></html>"


@pytest.mark.parametrize(
    "written",
    [
        page("<ul></ul>word " * 3),
        page_of_lists("<ul><li>x" * 31, "<li>an item</li>" * 30, "</li></ul>" * 31),
        page("<ul><li>an item<li>another<ul><li>in it</ul></ul><ol><li>first<li>second</ol>"),
        f"<ul>{'<li>an item</li>' * 25_000}</ul>",
        page("<p>a paragraph</p><ul><li>x</li></ul>" * 9_000),
    ],
)
def test_of_other_pages_the_text_is_as_it_was(written: str) -> None:
    assert extract(written, FAST) == extract_plain_text(written, main_content=True, alt_texts=False)
