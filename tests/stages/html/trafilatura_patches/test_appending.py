"""The text behind a block that is dropped stays where trafilatura leaves it, and is joined once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from stages.html.trafilatura_patches.appending import JoinedTexts
from tests.support.steps.untouched_trafilatura import untouched

pytestmark = pytest.mark.differential("stages/html")

THEIRS = untouched("main_extractor")
sources = st.builds(
    lambda name, tail: (name, tail),
    st.sampled_from(["list", "graphic", "p"]),
    st.sampled_from([None, "", " ", "word", " word", "word ", "\n"]),
)
acts = st.tuples(st.sampled_from(["dropped", "kept", "child"]), sources, st.integers(0, 1))


@given(st.lists(acts, max_size=25), st.sampled_from([None, "text", "text "]))
def test_texts_are_where_trafilatura_leaves_them(
    done: list[tuple[str, tuple[str, str | None], int]], text: str | None
) -> None:
    texts = JoinedTexts()
    ours, theirs = ([etree.Element("item"), etree.Element("cell")] for _ in range(2))
    for each in (*ours, *theirs):
        each.text = text
    for what, (name, tail), number in done:
        for parents, append in ((ours, texts.append_block), (theirs, THEIRS._append_block)):
            if what == "child":
                etree.SubElement(parents[number], "hi").tail = tail
                continue
            source = etree.Element(name)
            source.tail = tail
            append(parents[number], etree.Element("block") if what == "kept" else None, source)
    texts.end()
    assert [etree.tostring(each) for each in ours] == [etree.tostring(each) for each in theirs]


def test_the_texts_behind_a_row_of_blocks_are_joined_once() -> None:
    texts, parent, source = JoinedTexts(), etree.Element("item"), etree.Element("list")
    source.tail = "word"
    for number in range(500):
        texts.append_block(parent, None, source)
        assert parent.text is None, number
    texts.end()
    assert parent.text == " ".join(["word"] * 500)
