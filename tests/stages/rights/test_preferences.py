"""Content-Usage and Content-Signal values: the drafts' own examples, and values that nobody should write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.rights.preferences import content_signal_meaning, usage_meaning

USAGE = {
    # draft-ietf-aipref-vocab, "Exemplary Serialization Format" and "Processing Algorithm"; -attach, "Examples"
    "train-ai=y, search=n": "allowed",
    "train-ai=n": "denied",
    "train-ai=y": "allowed",
    'train-ai=y, train-ai, search=n, search="n"': "unknown",
    "train-ai;allow=n, train-ai=y": "allowed",
    'train-ai;has;parameters="?"': "unknown",
    # what follows from RFC 9651
    "": "unknown",
    "search=n": "unknown",
    "train-ai": "unknown",
    'train-ai="n"': "unknown",
    "train-ai=?0": "unknown",
    "train-ai=0": "unknown",
    "train-ai=N": "unknown",
    "train-ai=no": "unknown",
    "train-ai=(n)": "unknown",
    "train-ai=n;reason=x": "denied",
    "train-ai=y,train-ai=n": "denied",
    "train-ai=n , \t other=1": "denied",
    "  train-ai=n  ": "denied",
    "*=n, train-ai=n": "denied",
    "train-ai=n/*": "unknown",
}
MALFORMED_USAGE = (
    "TRAIN-AI=n", "Train-ai=n", "train-ai==n", "train-ai=", "train-ai=n,", "train-ai=n,,search=y", ",train-ai=n",
    "train-ai=n search=y", "train-ai = n", "train-ai =n", "train-ai= n", "=n", "train-ai:n", "train-ai=n;", "-=n",
    "1a=n", "train-ai='n'", 'train-ai="n', "train-ai=(n", "train-ai=n)", "train-ai=n\x00", "train-ai=ñ", "träin=n",
    "train-ai=𝕟", "train-ai=\ud800", "train ai=n", "[train-ai=n]", "{train-ai=n}", "/ train-ai=n",
    "train-ai=1.2345", "train-ai=:n:x", "train-ai=@", "train-ai=n;;a", "train-ai=n; A=1", "train-ai=\tn",
    "\ttrain-ai=n", "train-ai=n\nsearch=y", "$=n", "!",
)  # fmt: skip
SIGNALS = {
    "search=yes,ai-train=no,use=reference": "denied",
    "search=yes, ai-input=yes, ai-train=yes": "allowed",
    "search=yes": "unknown",
    "AI-Train=No": "denied",
    " ai-train = no ": "denied",
    "ai-train=no, ai-train=yes": "denied",
    "ai-train=yes, ai-train=maybe, ai-train=no": "denied",
}
MALFORMED_SIGNALS = (
    "", ",", "=", "no", "ai-train", "ai-train no", "ai-train:no", "ai-train=", "ai-train=n", "ai-train=y",
    "ai-train=no; search=yes", "ai-train==no", "ai-train='no'", 'ai-train="no"', "ai-train=false", "ai-train=0",
    "ai-train=nо", "=no", "yes, no", "ai-train=yes, ai-train=maybe", "ai-train=no search=yes", "\x00",
)  # fmt: skip


@pytest.mark.parametrize(("value", "meaning"), USAGE.items())
def test_a_content_usage_value_means_what_the_draft_says(value: str, meaning: str) -> None:
    assert usage_meaning(value) == meaning


@pytest.mark.parametrize(("value", "meaning"), SIGNALS.items())
def test_a_content_signal_value_means_what_its_authors_say(value: str, meaning: str) -> None:
    assert content_signal_meaning(value) == meaning


def test_sixty_malformed_values_are_malformed_and_grant_nothing() -> None:
    found = [usage_meaning(value) for value in MALFORMED_USAGE]
    found += [content_signal_meaning(value) for value in MALFORMED_SIGNALS]
    assert len(found) >= 60
    assert [
        value
        for value, meaning in zip((*MALFORMED_USAGE, *MALFORMED_SIGNALS), found, strict=True)
        if meaning != "malformed"
    ] == []


@given(st.text(max_size=60))
def test_no_text_raises(value: str) -> None:
    assert usage_meaning(value) in ("allowed", "denied", "unknown", "malformed")
    assert content_signal_meaning(value) in ("allowed", "denied", "unknown", "malformed")


@given(st.sampled_from(sorted(USAGE)), st.sampled_from(["y", "n"]))
def test_the_last_of_a_repeated_key_counts(value: str, last: str) -> None:
    joined = f"{value}, train-ai={last}" if value.strip() else f"train-ai={last}"
    assert usage_meaning(joined) == {"y": "allowed", "n": "denied"}[last]
