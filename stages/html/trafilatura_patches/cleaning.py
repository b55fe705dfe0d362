"""Patch of how readability, the second extractor of trafilatura 2.3.1, cleans a page: to the same tree, but in
linear time also where very many elements that it drops stand side by side.

It joins the text behind each element that it drops to all text so far, counts all children before each that it
adds, and looks from each empty block for the next sibling with a text: 5,000 divisions with an image each took
20 s."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from stages.html.trafilatura_patches.deleting import Deletions
from stages.html.trafilatura_patches.faults import own_fault

_HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS: Final = ("table", "ul", "div", "aside", "header", "footer", "section")


def patch_cleaning() -> None:
    """Patch this process's trafilatura."""
    from trafilatura.readability_lxml import Document

    Document.remove_unlikely_candidates = _remove_unlikely_candidates
    Document.transform_misused_divs_into_paragraphs = _divisions_as_paragraphs
    Document.sanitize = _sanitized


@own_fault
def _remove_unlikely_candidates(document: Any) -> None:
    """readability's own: elements whose class or id is that of a side bar, a menu or the like."""
    from trafilatura.readability_lxml import FRAME_TAGS, REGEXES

    verdicts: dict[str, bool] = {}
    deletions = Deletions()
    for element in document.doc.findall(".//*"):
        attributes = " ".join(filter(None, (element.get("class"), element.get("id"))))
        if len(attributes) < 2 or element.tag in FRAME_TAGS:
            continue
        if attributes not in verdicts:
            small = attributes.lower()
            is_unlikely = REGEXES["unlikelyCandidatesRe"].search(small) is not None
            verdicts[attributes] = is_unlikely and not REGEXES["okMaybeItsACandidateRe"].search(small)
        if verdicts[attributes]:
            deletions.delete(element)
    deletions.end()


@own_fault
def _divisions_as_paragraphs(document: Any) -> None:
    """readability's own: divisions without blocks are paragraphs, and what stands in the others beside their
    elements is one each; line breaks in them go."""
    from trafilatura.readability_lxml import DIV_TO_P_PREFIXES

    for element in document.doc.findall(".//div"):
        holds_block = any(
            str(each.tag).startswith(DIV_TO_P_PREFIXES) for each in element.iterdescendants("*")
        )
        if not holds_block and (element.find(".//a") is None or element.xpath("text()[normalize-space()]")):
            element.tag = "p"
    for element in document.doc.findall(".//div"):
        if element.text and element.text.strip():
            element.insert(0, _paragraph(element.text))
            element.text = None
        behind: list[str] = []  # white space behind line breaks that went, the last first
        for child in reversed(list(element)):
            tail = child.tail or ""
            if tail.strip():
                child.addnext(_paragraph(tail + "".join(reversed(behind))))
                behind, child.tail = [], None
            elif child.tag == "br":
                behind.append(tail)
                child.tail = None
            elif behind:
                behind, child.tail = [], tail + "".join(reversed(behind)) or None
            if child.tag == "br":
                element.remove(child)
        if behind:
            element.text = (element.text or "") + "".join(reversed(behind)) or None


def _paragraph(text: str) -> Any:
    from lxml.html import Element

    paragraph = Element("p")
    paragraph.text = text
    return paragraph


@own_fault
def _sanitized(document: Any, node: Any, candidates: dict[Any, Any]) -> str:
    """readability's own: the article without headings of links, forms, and blocks that are hardly text."""
    from lxml.etree import tostring
    from trafilatura.readability_lxml import REGEXES

    deletions = Deletions()
    for heading in list(node.iter(*_HEADINGS)):
        deletions.end_within(heading)
        if document.class_weight(heading) < 0 or document.get_link_density(heading) > 0.33:
            deletions.delete(heading)
    for element in list(node.iter("form", "textarea")):
        deletions.delete(element)
    for frame in list(node.iter("iframe")):
        if "src" in frame.attrib and REGEXES["videoRe"].search(frame.attrib["src"]):
            deletions.end_within(frame)
            frame.text = "VIDEO"
        else:
            deletions.delete(frame)
    deletions.end()
    siblings = _Siblings(node, deletions)
    for block in reversed(list(node.iter(*_BLOCKS))):
        deletions.end_within(block)
        weight = document.class_weight(block)
        score = candidates[block].score if block in candidates else 0
        if weight + score < 0 or (
            block.text_content().count(",") < 10 and _is_hardly_text(document, block, weight, siblings)
        ):
            deletions.delete(block)
    deletions.end()
    return str(tostring(node, encoding=str, method="xml"))


def _is_hardly_text(document: Any, block: Any, weight: float, siblings: _Siblings) -> bool:
    """Whether a block of few commas is one of images, items, inputs or links, or between short ones and
    empty."""
    from trafilatura.readability_lxml import LIST_TAGS, TEXT_CLEAN_ELEMS, text_length

    counts = Counter(element.tag for element in block.iterdescendants(*TEXT_CLEAN_ELEMS))
    counts["li"] -= 100
    counts["input"] -= len(block.findall('.//input[@type="hidden"]'))
    length = text_length(block)
    density = document.get_link_density(block)
    return (
        bool(counts["p"] and counts["img"] > 1 + counts["p"] * 1.3)
        or (counts["li"] > counts["p"] and block.tag not in LIST_TAGS)
        or counts["input"] > counts["p"] / 3
        or (length < document.min_text_length and (counts["img"] == 0 or counts["img"] > 2))
        or density > (0.5 if weight >= 25 else 0.2)
        or (counts["embed"] == 1 and length < 75)
        or counts["embed"] > 1
        or (not length and siblings.length_around(block) <= 1000)
    )


class _Siblings:
    """The lengths of the nearest siblings with a text. Blocks are asked for from the last to the first, so what
    stands before one is as it was, and what stands behind it stays as it is."""

    def __init__(self, node: Any, deletions: Deletions) -> None:
        elements = list(node.iter())
        self._places = {element: place for place, element in enumerate(elements)}
        # A list lets go of its last elements first. Those around an element that was dropped have to be there
        # when lxml frees it: else it looks through all beside it.
        self._elements = elements
        self._deletions = deletions
        self._before: dict[Any, tuple[int, int]] = {}
        """By parent: the place of the nearest sibling with a text before the last block that was asked for (-1:
        there is none), and its length."""
        self._behind: dict[Any, tuple[int, int]] = {}
        """By parent: the length that is the nearest from this place on."""

    def length_around(self, block: Any) -> int:
        """The length of the nearest sibling with a text before the block and of that behind it, in all."""
        parent, place = block.getparent(), self._places[block]
        if parent not in self._before or place <= self._before[parent][0]:
            self._before[parent] = self._nearest_before(block)
        length = self._nearest_behind(block, self._behind.get(parent))
        self._behind[parent] = (place + 1, length)
        return self._before[parent][1] + length

    def _nearest_before(self, block: Any) -> tuple[int, int]:
        for sibling in block.itersiblings(preceding=True):
            if length := self._length(sibling):
                return self._places[sibling], length
        return -1, 0

    def _nearest_behind(self, block: Any, known: tuple[int, int] | None) -> int:
        for sibling in block.itersiblings():
            if known is not None and self._places[sibling] >= known[0]:
                return known[1]
            if length := self._length(sibling):
                return length
        return 0

    def _length(self, sibling: Any) -> int:
        from trafilatura.readability_lxml import text_length

        self._deletions.end_within(sibling)
        return int(text_length(sibling))
