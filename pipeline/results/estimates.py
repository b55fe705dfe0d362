"""Figures of a run as they are estimated before it starts, each with a 90% interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rich.filesize import decimal

from lineage.json_record import JsonRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(JsonRecord):
    """A figure, and the bounds of its 90% interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """The figure in another unit."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(JsonRecord):
    """What `sluice plan` wrote for a run: of which recipe and inputs (`of`, a digest), figures by name, and what
    they rest on."""

    of: str
    estimates: Mapping[str, Estimate]
    notes: tuple[str, ...] = ()


_BYTES: Final = ("memory", "disk", "output")
STEP: Final = "processor_hours."
_NAMES: Final = {
    "kept_documents": "documents that stay",
    "kept_share": "share of documents that stay",
    "processor_hours": "processor time",
    "wall_hours": "wall time",
    "memory": "memory of a worker",
    "disk": "disk on the way",
    "sample_documents": "documents of the sample",
}


def shown_name(name: str) -> str:
    """A figure's name for people; that of a step is set in."""
    return f"  {name.removeprefix(STEP)}" if name.startswith(STEP) else _NAMES.get(name, name)


def shown_value(name: str, amount: float) -> str:
    """A value of the figure of this name, with its unit."""
    if name in _BYTES:
        return decimal(round(amount))
    if name == "kept_share":
        return f"{amount:.1%}"
    if "hours" in name:
        if amount < 1 / 60:
            return f"{amount * 3600:,.2f} s"
        return f"{amount:,.3g} h" if amount < 100 else f"{amount:,.0f} h"
    if name == "money":
        return f"{amount:,.4f}" if amount < 1 else f"{amount:,.2f}"
    return f"{amount:,.0f}"


def shown_line(name: str, found: Estimate) -> str:
    """A figure and its interval in words."""
    value, low, high = (shown_value(name, each) for each in (found.value, found.low, found.high))
    return f"{shown_name(name).strip()} {value} ({low} to {high})"


PREDICTION_FILE: Final = "work/prediction.json"
"""Where a run finds it, relative to OUT: gone with work/, and kept in run.json."""
