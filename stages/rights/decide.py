"""From the signals of a page to what they come to for training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.store.column_names import SIGNALS, TRAINING_USE, TRAINING_USE_BY
from stages.rights.signal import KINDS, MOST_CHARS, Signal, Use, combined
from stages.surrogates import without_surrogates

_TDM_ORDER: Final = ("html", "header", "tdmrep.json")
"""TDMRep, "Processing priority": metadata of the HTML supersedes the header, and that the file; what is unset, or an
error, leaves the value that was there."""
_CONTROLS = re.compile(r"[\x00-\x20\x7f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUse:
    """What the signals of a page come to, and the kind that decides (None where it is unknown)."""

    use: Use
    by: str | None


def meaning_of_kind(kind: str, signals: Iterable[Signal]) -> Use:
    """What the signals of one kind come to. Those of TDMRep replace one another; those of any other kind join: one
    that denies wins."""
    of_kind = [signal for signal in signals if signal.kind == kind]
    if kind != "tdmrep":
        return combined(signal.meaning for signal in of_kind)
    uses = (combined(signal.meaning for signal in of_kind if signal.where == where) for where in _TDM_ORDER)
    return next((use for use in uses if use != "unknown"), "unknown")


def training_use(signals: Sequence[Signal]) -> TrainingUse:
    """What all signals of a page come to: denied if any kind that decides denies, else allowed if any allows."""
    there = {signal.kind for signal in signals}
    found = {
        kind: meaning_of_kind(kind, signals) for kind, spec in KINDS.items() if spec.decides and kind in there
    }
    for use in ("denied", "allowed"):
        by = next((kind for kind, meaning in found.items() if meaning == use), None)
        if by is not None:
            return TrainingUse(use=use, by=by)
    return TrainingUse(use="unknown", by=None)


def denies(kind: str, signals: Sequence[Signal]) -> bool:
    """Whether a page is rejected where the recipe denies this kind: its signals deny, or it decides nothing about
    training and is there."""
    if KINDS[kind].decides:
        return meaning_of_kind(kind, signals) == "denied"
    return any(signal.kind == kind for signal in signals)


def recorded_columns(signals: Sequence[Signal]) -> tuple[tuple[str, str], ...]:
    """The columns of `documents` for a page with these signals."""
    found = training_use(signals)
    columns = ((SIGNALS, as_text(signals)), (TRAINING_USE, found.use))
    return columns if found.by is None else (*columns, (TRAINING_USE_BY, found.by))


def as_text(signals: Sequence[Signal]) -> str:
    """Signals as the column holds them; `from_text` gives them back."""
    if not signals:
        return "[]"
    shown = [signal._replace(value=_shown(signal.value))._asdict() for signal in signals]
    return json.dumps(shown, separators=(",", ":"))


def from_text(text: str | None) -> list[Signal]:
    """The signals of a column's value; none of a null."""
    return [] if text is None else [Signal(**one) for one in json.loads(text)]


def _shown(value: str) -> str:
    # DuckDB reads no lone surrogate and no NUL in a JSON text.
    return without_surrogates(_CONTROLS.sub(" ", value[: 2 * MOST_CHARS]).strip())[:MOST_CHARS]
