"""Characters that XML forbids: found as trafilatura's own pattern finds them."""

from __future__ import annotations

import importlib.util
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.html.trafilatura_patches.loading import IfAny, holds_forbidden

pytestmark = pytest.mark.differential("stages/html")


def untouched() -> re.Pattern[str]:
    """trafilatura's pattern as it writes it."""
    spec = importlib.util.find_spec("trafilatura.utils")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.INVALID_XML_CHARS


PATTERN = untouched()


def test_every_character_is_forbidden_that_trafilatura_takes_out_and_no_other():
    every = map(chr, range(0x110000))
    assert [one for one in every if holds_forbidden(one)] == PATTERN.findall(
        "".join(map(chr, range(0x110000)))
    )


@given(st.text(st.characters() | st.sampled_from("\0\x0b\x1f\t\r\n\ufffe\uffff\ud800é漢")))
def test_what_is_left_of_a_text_is_what_trafilatura_leaves(text):
    assert IfAny(PATTERN).sub("", text) == PATTERN.sub("", text)
