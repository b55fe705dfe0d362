"""Where the marks of a small chart go: from values to the coordinates of an SVG, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 300
HEIGHT: Final = 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 20, 26
_MARGIN: Final = 0.06
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """A chart's plane: the least and largest value of each axis."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at_x(self, value: float) -> float:
        """Pixels from the left."""
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * _share(value, self.x), 1)

    def at_y(self, value: float) -> float:
        """Pixels from the top."""
        return round(HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * _share(value, self.y), 1)

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """The `points` of a line through these values."""
        return " ".join(f"{self.at_x(x)},{self.at_y(y)}" for x, y in zip(xs, ys, strict=True))

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
        """The `points` of the area between two lines."""
        return self.path([*xs, *reversed(xs)], [*low, *reversed(high)])

    @property
    def ticks_x(self) -> list[tuple[float, str]]:
        """(pixels, label) of the round values on the horizontal axis."""
        return [(self.at_x(value), label) for value, label in ticks(*self.x)]

    @property
    def ticks_y(self) -> list[tuple[float, str]]:
        """(pixels, label) of the round values on the vertical axis."""
        return [(self.at_y(value), label) for value, label in ticks(*self.y)]

    @property
    def frame(self) -> dict[str, int]:
        """The edges of the plane in pixels."""
        return {"left": _LEFT, "right": WIDTH - _RIGHT, "top": _TOP, "bottom": HEIGHT - _BOTTOM}


def spanning(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis that shows all values, with a little air; never empty."""
    low, high = min(values), max(values)
    air = (high - low) * _MARGIN or abs(high) * 0.01 or 1.0
    return low - air, high + air


def ticks(low: float, high: float, about: int = 5) -> list[tuple[float, str]]:
    """Round values from `low` to `high`, about so many, with as many decimals as they differ in."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [(number * step, f"{number * step:.{decimals}f}") for number in range(first, last + 1)]


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0])
