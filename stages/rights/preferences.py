"""The values of Content-Usage (AIPREF) and Content-Signal, and what they mean for training."""

from __future__ import annotations

from typing import Final, cast

import http_sf

from stages.rights.signal import Meaning

_TRAINING: Final = "train-ai"
"""The category of draft-ietf-aipref-vocab for training a generative model."""
_USAGE: Final[dict[str, Meaning]] = {"y": "allowed", "n": "denied"}
_SIGNALS: Final[dict[str, Meaning]] = {"yes": "allowed", "no": "denied"}
_AI_TRAIN: Final = "ai-train"


def usage_meaning(value: str) -> Meaning:
    """What a Content-Usage value says of training.

    It is a Dictionary of structured fields (RFC 9651, 4.2.2): keys are case-sensitive, of a repeated one the last
    counts, parameters and other keys say nothing, and a value that is not the token `y` or `n` leaves it unknown.
    What does not parse is malformed, all of it (draft-ietf-aipref-vocab, "Processing Algorithm")."""
    try:
        # Latin-1 gives the bytes of a header back; a character that it has not is none of ASCII, and no dictionary.
        parsed = cast(
            dict[str, tuple[object, object]], http_sf.parse(value.encode("latin-1"), tltype="dictionary")
        )
    except ValueError:  # of which http_sf's error and that of an encoding are kinds
        return "malformed"
    preference = parsed.get(_TRAINING, (None, {}))[0]
    return _USAGE.get(str(preference), "unknown") if isinstance(preference, http_sf.Token) else "unknown"


def content_signal_meaning(value: str) -> Meaning:
    """What a Content-Signal value, such as `search=yes, ai-train=no`, says of training; letter case counts for
    nothing, as in the rest of robots.txt.

    A signal that is absent neither grants nor denies (contentsignals.org). Malformed where no item is a pair, or
    ai-train has another value than yes or no."""
    pairs = [item.partition("=") for item in value.lower().split(",") if item.strip()]
    if not any(equals and name.strip() for name, equals, _ in pairs):
        return "malformed"
    said = [text.strip() for name, equals, text in pairs if name.strip() == _AI_TRAIN]
    if any(text not in _SIGNALS for text in said):
        return "denied" if "no" in said else "malformed"
    return "denied" if "no" in said else "allowed" if said else "unknown"
