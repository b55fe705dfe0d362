"""An ablation's report as one self-contained HTML page, in the look of a run's report."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.report.charts import HEIGHT, WIDTH, Axes, spanning
from pipeline.report.render import escaping

if TYPE_CHECKING:
    from trainer.mix.report import MixReport, Response, TargetFit

REPORT: Final = "report.html"
"""In the folder of the ablation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A run in a chart, in pixels."""

    x: float
    y: float
    role: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Predicted against measured: one target's runs."""

    title: str
    note: str
    axes: Axes
    diagonal: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The response to one source's share."""

    response: Response
    axes: Axes
    line: str
    band: str


def render_mix(report: MixReport) -> str:
    """The page. Names from the recipe are escaped."""
    from trainer.mix.optimize import verdict_sentence  # here: it loads scipy

    environment = escaping("pipeline.report", ".")
    environment.filters |= {
        "nats": lambda value: f"{value:.4f}",
        "percent": lambda value: f"{100 * value:.1f}%",
    }
    return environment.get_template("training/mix.html").render(
        report=report,
        verdict=verdict_sentence(report.choice.verdict(report.noise_floor), report.noise_floor),
        tiles=_tiles(report),
        scatters=_scatters(report),
        curves=_curves(report),
        size={"width": WIDTH, "height": HEIGHT},
    )


def as_plain(report: MixReport) -> dict[str, object]:
    """The report for JSON."""
    return dataclasses.asdict(report) | {
        "toml": report.choice.as_toml(),
        "verdict": report.choice.verdict(report.noise_floor),
    }


def _tiles(report: MixReport) -> list[tuple[str, str]]:
    cost = report.cost
    best = min(report.rows, key=lambda row: row.measured)
    floor = "unknown" if report.noise_floor is None else f"{report.noise_floor:.4f}"
    return [
        ("predicted loss of the recommended mixture", f"{report.choice.predicted:.4f}"),
        ("predicted loss of the natural one", f"{report.choice.natural:.4f}"),
        ("predicted loss of the uniform one", f"{report.choice.uniform:.4f}"),
        ("least loss of a run", f"{best.measured:.4f}"),
        ("noise floor", floor),
        ("regret the runs allow", f"{report.choice.regret[0]:.4f}"),
        ("proxy runs", f"{cost.num_runs:,}"),
        ("tokens trained on", f"{cost.tokens:,}"),
        ("floating point operations", f"{cost.flops:.2e}"),
        ("hours of one process", f"{cost.seconds / 3600:.2f}"),
    ]


def _scatters(report: MixReport) -> list[Scatter]:
    from trainer.mix.report import TargetFit  # here: it loads scipy, and the lineage page reads REPORT alone

    unseen = report.rows[: len(report.fits[0].measured)]
    goal = report.scores[report.model]
    whole = TargetFit(
        target="the goal",
        weight=1.0,
        score=goal,
        measured=tuple(row.measured for row in unseen),
        predicted=tuple(row.predicted for row in unseen),
    )
    return [_scatter(report, fit) for fit in ((whole, *report.fits) if len(report.fits) > 1 else report.fits)]


def _scatter(report: MixReport, fit: TargetFit) -> Scatter:
    span = spanning([*fit.measured, *fit.predicted])
    axes = Axes(x=span, y=span)
    rank = "constant" if fit.score.spearman is None else f"Spearman {fit.score.spearman:.3f}"
    return Scatter(
        title=fit.target,
        note=f"{rank}, mean error {fit.score.mae:.4f}",
        axes=axes,
        diagonal=axes.path(span, span),
        dots=tuple(
            Dot(
                x=axes.at_x(measured),
                y=axes.at_y(predicted),
                role=row.role,
                label=f"{row.name}: measured {measured:.4f}, predicted {predicted:.4f}",
            )
            for row, measured, predicted in zip(report.rows, fit.measured, fit.predicted, strict=False)
        ),
    )


def _curves(report: MixReport) -> list[Curve]:
    curves = []
    for response in report.responses:
        # One scale for all sources: what matters most looks steepest.
        ends = [value for other in report.responses for value in (*other.low, *other.high, *other.losses)]
        axes = Axes(x=spanning(response.shares), y=spanning(ends))
        curves.append(
            Curve(
                response=response,
                axes=axes,
                line=axes.path(response.shares, response.losses),
                band=axes.band(response.shares, response.low, response.high),
            )
        )
    return curves
