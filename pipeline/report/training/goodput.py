"""Where a training run's wall time went, as one self-contained HTML page."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from pipeline.report.render import escaping

if TYPE_CHECKING:
    from trainer.telemetry.goodput import GoodputAccount


def render_goodput(output: str, account: GoodputAccount, now: float) -> str:
    """The page of a run's goodput, as read at `now` (seconds since the epoch). What stands in it is
    escaped."""
    from trainer.telemetry.goodput import PARTS

    template = escaping("pipeline.report", ".").get_template("training/goodput.html")
    found, spans = account.at(), list(account.spans())
    return template.render(output=output, found=found, parts=PARTS, spans=spans, read_at=_utc(now), utc=_utc)


def _utc(at: float) -> str:
    return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S}"
