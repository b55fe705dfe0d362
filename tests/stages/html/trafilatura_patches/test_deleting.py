"""Elements are deleted as trafilatura deletes them, to the same tree; in linear time."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy

import pytest
import trafilatura.xml
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html

from stages.html.trafilatura_patches.deleting import Deletions

pytestmark = pytest.mark.differential("stages/html")

NAMES = ["p", "b", "input", "form", "!--x--", "div"]
texts = st.sampled_from(["", "x", " y ", "&amp;"])


def element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda name, inner, tail: f"<{name}>{tail}" if name[0] == "!" else f"<{name}>{inner}</{name}>{tail}",
        st.sampled_from(NAMES),
        st.lists(children, max_size=4).map("".join),
        texts,
    )


pages = st.lists(st.recursive(texts, element, max_leaves=20), min_size=1, max_size=6).map("".join)


@given(
    pages,
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=30),
    st.booleans(),
    st.integers(0, 3),
)
def test_deleting_in_rows_gives_the_same_tree(
    written: str, chosen: list[tuple[int, bool]], in_order: bool, long_row: int
) -> None:
    theirs = html.document_fromstring(f"<body>{written}</body>")
    ours = deepcopy(theirs)
    deletions = Deletions(long_row)
    nodes, copies = list(theirs.iter()), list(ours.iter())
    for number, keeps_tail in sorted(chosen) if in_order else chosen:
        if number < len(nodes):
            trafilatura.xml.delete_element(nodes[number], keeps_tail)
            deletions.delete(copies[number], keeps_tail)
    deletions.end()
    assert etree.tostring(ours) == etree.tostring(theirs)


RAW = """
import importlib, json, sys
from lxml import etree
from trafilatura import core, htmlprocessing
from trafilatura.settings import Extractor
from trafilatura.utils import load_html
if sys.argv[1] == "patched":
    from stages.html.trafilatura_patches.deleting import patch_deleting
    patch_deleting()
for page in json.load(sys.stdin):
    for focus in ("balanced", "precision", "recall"):
        options = Extractor(precision=focus == "precision", recall=focus == "recall")
        tree = core.tree_cleaning(load_html(page), options)
        print(etree.tostring(core.convert_tags(tree, options)))
        print(etree.tostring(htmlprocessing.delete_by_link_density(tree, "div", backtracking=True)))
    print(etree.tostring(core.prune_unwanted_nodes(load_html(page), core.REMOVE_COMMENTS_XPATH)))
    print(etree.tostring(importlib.import_module("trafilatura.baseline").basic_cleaning(load_html(page))))
"""
UNITS = [
    "<input>x",
    "<form>x</form>y",
    "<form>x<form>y</form>z</form>",
    "<sup></sup>x<sub>2</sub>",
    "<p></p>x<aside>y</aside>",
    "<div class='comment'>x</div>y",
    "x<footer>y</footer><nav>z</nav>w",
    "<div><a href=x>y</a></div>z",
    "<math alttext=x></math>y",
    "<table><tr><td>x</td></tr></table>y",
    "<iframe></iframe>x<video>y</video>",
]


def test_what_trafilatura_deletes_is_deleted_alike() -> None:
    asked = json.dumps([f"<p>words</p>{unit * 40}" for unit in UNITS])
    told = []
    for how in ("patched", "left alone"):
        call = [sys.executable, "-c", RAW, how]
        told.append(subprocess.run(call, input=asked, capture_output=True, text=True, check=True).stdout)
    assert told[0] == told[1] and len(told[0]) > 10_000


def test_the_text_behind_a_long_row_of_elements_is_joined_once() -> None:
    tree = html.document_fromstring(f"<body><p>words</p>{'<input>x' * 1000}</body>")
    deletions, (text,) = Deletions(), tree.iter("p")
    lengths = set()
    for each in list(tree.iter("input")):
        deletions.delete(each)
        lengths.add(len(text.tail or ""))
    assert max(lengths) < 20
    deletions.end()
    assert text.tail == "x" * 1000
