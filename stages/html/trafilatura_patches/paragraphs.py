"""Patch of how justext, the third extractor of trafilatura 2.3.1, judges short paragraphs by those around
them: to the same classes, but in time linear in the number of paragraphs. It looks from each short one for
the next that is not, so a list of 30,000 items took minutes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from stages.html.trafilatura_patches.faults import own_fault

_DECIDED: Final = ("good", "bad")
_NOT_SHORT: Final = ("good", "bad", "neargood")


def patch_paragraphs() -> None:
    """Patch this process's trafilatura."""
    import trafilatura.external

    trafilatura.external.revise_paragraph_classification = revise_classes


@own_fault
def revise_classes(paragraphs: Sequence[Any], max_heading_distance: int) -> None:
    """justext's `revise_paragraph_classification` (3.0.2)."""
    for place, paragraph in enumerate(paragraphs):
        paragraph.class_type = paragraph.cf_class
        is_short_heading = paragraph.heading and paragraph.class_type == "short"
        if is_short_heading and _is_near_good(place, paragraphs, max_heading_distance):
            paragraph.class_type = "neargood"
    _revise_short(paragraphs)
    _revise_near_good(paragraphs)
    for place, paragraph in enumerate(paragraphs):
        may_be_good = paragraph.heading and paragraph.class_type == "bad" and paragraph.cf_class != "bad"
        if may_be_good and _is_near_good(place, paragraphs, max_heading_distance):
            paragraph.class_type = "good"


def _is_near_good(place: int, paragraphs: Sequence[Any], most: int) -> bool:
    """Whether a good paragraph begins within so many characters behind the one at `place`. Each has a
    character."""
    distance = 0
    for behind in range(place + 1, len(paragraphs)):
        if distance > most:
            break
        if paragraphs[behind].class_type == "good":
            return True
        distance += len(paragraphs[behind].text)
    return False


def _revise_short(paragraphs: Sequence[Any]) -> None:
    classes = [paragraph.class_type for paragraph in paragraphs]
    before, behind = _last_before(classes, _DECIDED), _next_behind(classes, _DECIDED)
    near_before, near_behind = _last_before(classes, _NOT_SHORT), _next_behind(classes, _NOT_SHORT)
    for place, paragraph in enumerate(paragraphs):
        if classes[place] != "short":
            continue
        around = {before[place], behind[place]}
        is_near = (before[place] == "bad" and near_before[place] == "neargood") or (
            behind[place] == "bad" and near_behind[place] == "neargood"
        )
        is_good = around == {"good"} or (len(around) == 2 and is_near)
        paragraph.class_type = "good" if is_good else "bad"


def _revise_near_good(paragraphs: Sequence[Any]) -> None:
    classes = [paragraph.class_type for paragraph in paragraphs]
    behind, before = _next_behind(classes, _DECIDED), "bad"
    for place, paragraph in enumerate(paragraphs):
        if classes[place] == "neargood":  # those before it are decided by now
            paragraph.class_type = "bad" if before == behind[place] == "bad" else "good"
        if paragraph.class_type in _DECIDED:
            before = paragraph.class_type


def _last_before(classes: Sequence[str], wanted: Collection[str]) -> list[str]:
    """For each place the last class before it that is wanted; "bad" where there is none."""
    found, last = [], "bad"
    for each in classes:
        found.append(last)
        if each in wanted:
            last = each
    return found


def _next_behind(classes: Sequence[str], wanted: Collection[str]) -> list[str]:
    return _last_before(classes[::-1], wanted)[::-1]
