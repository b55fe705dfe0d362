"""Paragraphs are judged as justext judges them, and each is looked at so many times at most."""

from __future__ import annotations

from copy import deepcopy

import justext.core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.html.trafilatura_patches.paragraphs import revise_classes

pytestmark = pytest.mark.differential("stages/html")


class Judged:
    """A paragraph as justext has it by then; how often its class was asked for."""

    def __init__(self, given: str, text: str, heading: bool) -> None:
        self.cf_class, self.text, self.heading = given, text, heading
        self.num_asked, self._class = 0, ""

    @property
    def class_type(self) -> str:
        self.num_asked += 1
        return self._class

    @class_type.setter
    def class_type(self, found: str) -> None:
        self._class = found


judged = st.builds(
    Judged,
    st.sampled_from(["good", "bad", "short", "short", "neargood", "neargood"]),
    st.integers(1, 80).map("x".__mul__),
    st.booleans(),
)


@given(st.lists(judged, max_size=30))
def test_classes_are_those_of_justext(paragraphs: list[Judged]) -> None:
    theirs = deepcopy(paragraphs)
    justext.core.revise_paragraph_classification(theirs, 150)
    revise_classes(paragraphs, 150)
    assert [each.class_type for each in paragraphs] == [each.class_type for each in theirs]


def test_a_row_of_short_paragraphs_is_gone_through_a_fixed_number_of_times() -> None:
    for given_class in ("short", "neargood"):
        row = [Judged(given_class, "x", False) for _ in range(1000)]
        revise_classes(row, 150)
        assert max(each.num_asked for each in row) < 20
        justext.core.revise_paragraph_classification(row, 150)
        assert max(each.num_asked for each in row) > 500
