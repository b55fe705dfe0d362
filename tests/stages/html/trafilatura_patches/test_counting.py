"""Children are counted as trafilatura counts them, and each once."""

from __future__ import annotations

from typing import Any

import pytest
from lxml import etree, html
from trafilatura.settings import Extractor
from trafilatura.utils import load_html

from stages.html.trafilatura_patches.apply import apply_patches
from stages.html.trafilatura_patches.counting import Counting, _with_ends_deleted
from stages.html.trafilatura_patches.scopes import in_scope
from tests.support.steps.untouched_trafilatura import untouched

pytestmark = pytest.mark.differential("stages/html")

THEIRS = untouched("main_extractor")
TEXT = f"<p>{'Some words of a text. ' * 30}</p>"
SPANNING = "<tr><th rowspan=2 colspan=3>a</th><td>b</td></tr><tr><td>c</td></tr>"
NESTED = "<tr><td>c<table><tr><td>d</td></tr></table></td></tr>"
PAGES = [
    f"<article>{TEXT}{'<h2>x</h2>' * 9}</article>",
    f"<article>{TEXT}{'<h2>x</h2>' * 9}<p>more words</p><h2>y</h2><!--z--><h3>w</h3></article>",
    f"<article>{'<h2>x</h2>' * 9}</article>",
    f"<article>{TEXT}<h2>x</h2><table><tr><td>cell</td></tr></table><h2>y</h2></article>",
    f"<article>{TEXT}{'<h2>x</h2>words' * 9}</article>",
    f"<article>{TEXT}{'<a href=x>link</a>' * 9}</article>",
    f"{TEXT}<table><caption>c</caption>{SPANNING * 4}</table>",
    f"{TEXT}<table><tr>{'<td rowspan=3>a</td>' * 9}</tr><tr><td>b</td></tr><tr></tr>{NESTED}</table>",
    f"{TEXT}<table><td>a<td colspan=4>b<tr><td rowspan=0>c<td rowspan=999>d</table>",
]


@pytest.mark.parametrize("focus", ["precision", "balanced", "recall"])
@pytest.mark.parametrize("page", PAGES)
def test_what_is_extracted_is_the_same(page: str, focus: str) -> None:
    apply_patches()
    from trafilatura import core, main_extractor

    options = Extractor(precision=focus == "precision", recall=focus == "recall")
    told = []
    for module in (main_extractor, THEIRS):
        tree = load_html(f"<html><body>{page}</body></html>")
        body, text = module.extract_content(
            core.convert_tags(core.tree_cleaning(tree, options), options), options
        )
        told.append((etree.tostring(body), text))
    assert told[0] == told[1]


def test_of_titles_at_the_end_the_children_are_counted_once() -> None:
    asked = []

    def counted(element: Any) -> int:
        asked.append(element)
        return len(element)

    tree = html.fromstring(f"<div><p>words</p>{'<head>x</head>' * 3}</div>")
    for _ in range(500):
        tree.append(etree.fromstring("<head>x</head>"))
    function = in_scope(THEIRS.prune_unwanted_sections, len=counted)
    options = Extractor(precision=True)
    pruned = _with_ends_deleted(function, {"head"})(tree, {"p"}, options)
    assert [child.tag for child in pruned] == ["p"]
    assert len(asked) == 2


def test_the_cells_of_a_row_are_counted_on() -> None:
    row, other, length = etree.Element("row"), etree.Element("row"), Counting().length
    for number in range(50):
        assert length(row) == number
        etree.SubElement(row, "cell")
    assert (
        length(other) == 0 and length(row) == 50 and length([1, 2]) == 2 and length(etree.Element("p")) == 0
    )


def test_each_cell_of_a_row_is_looked_at_once() -> None:
    looked = []

    class Cell:
        tag = "cell"

        def __init__(self, row: list[Cell]) -> None:
            self._row, self._place = row, len(row)
            row.append(self)

        def itersiblings(self) -> list[Cell]:
            looked.extend(self._row[self._place + 1 :])
            return self._row[self._place + 1 :]

    class Row:
        tag = "row"

        def __init__(self) -> None:
            self.cells: list[Cell] = []

        def iterchildren(self) -> list[Cell]:
            looked.extend(self.cells)
            return self.cells

    row, length = Row(), Counting().length
    for number in range(500):
        assert length(row) == number
        Cell(row.cells)
    assert length(row) == len(looked) == 500
