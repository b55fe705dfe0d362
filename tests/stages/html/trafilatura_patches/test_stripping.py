"""Elements are stripped to the same tree, and of many no texts are left beside one another."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html

from stages.html.trafilatura_patches import stripping

pytestmark = pytest.mark.differential("stages/html")

NAMES = ["p", "b", "i", "img", "!--x--", "div"]
texts = st.sampled_from(["", "x", " y ", "&amp;"])


def element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def written(name: str, inner: list[str], tail: str) -> str:
        ended = name.startswith("!") or name == "img"
        return f"<{name}>{tail}" if ended else f"<{name}>{''.join(inner)}</{name}>{tail}"

    return st.builds(written, st.sampled_from(NAMES), st.lists(children, max_size=5), texts)


pages = st.lists(st.recursive(texts, element, max_leaves=20), min_size=1, max_size=6).map("".join)


@given(pages, st.sampled_from([("b",), ("b", "i", "img"), (["img", "div"],), ("em",), ()]))
def test_the_same_tree_is_left(written: str, names: tuple[str | list[str], ...]) -> None:
    theirs = html.document_fromstring(f"<body>{written}</body>")
    ours = deepcopy(theirs)
    etree.strip_tags(theirs, *names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stripping, "_MANY", 1)
        stripping.strip_tags(ours, *names)
    assert etree.tostring(ours) == etree.tostring(theirs)
    assert [(each.text, each.tail) for each in ours.iter()] == [
        (each.text, each.tail) for each in theirs.iter()
    ]


def test_of_many_no_texts_are_left_beside_one_another() -> None:
    tree = html.fromstring(f"<div>{'<img>word' * 1001}<p>{'<img>word' * 3}</p>{'<img>word' * 3}</div>")
    stripping.strip_tags(tree, "img")
    assert tree.xpath("count(//text())") == 3
    assert [tree.text, tree[0].text, tree[0].tail] == ["word" * 1001, "word" * 3, "word" * 3]
