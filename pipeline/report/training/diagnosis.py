"""The diagnosis of a training run as one self-contained HTML page, with the heat map of own time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.report.render import escaping

if TYPE_CHECKING:
    from trainer.recorder.diagnosis.diagnose import Diagnosis

HEAT: Final = (0.8, 0.95, 1.05, 1.15, 1.25, 1.5, 2.0)
"""Bounds of the heat map's colours: own time over the median of all ranks."""


def render_diagnosis(found: Diagnosis) -> str:
    """The page. What stands in it is escaped."""
    from trainer.recorder.diagnosis import words

    template = escaping("pipeline.report", ".").get_template("training/diagnosis.html")
    return template.render(found=found, words=words, heat=heat_class, bounds=HEAT)


def heat_class(cell: float | None) -> int | None:
    """The number of a cell's colour, 0 for the fastest; None where nothing is known."""
    return None if cell is None else sum(cell >= bound for bound in HEAT)
