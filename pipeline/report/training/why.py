"""A step of a training run as one self-contained HTML page: which documents made it, and what the replay
proves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.report.render import escaping

if TYPE_CHECKING:
    from trainer.evidence.why import WhyStep


def render_why(found: WhyStep, page: str | None = None) -> str:
    """The page of a step. What stands in it is escaped. `page`: the address that `sluice page OUT` prints, to
    which documents are linked; without it the call of `sluice trace` stands there."""
    if page is not None and not page.startswith(("http://", "https://")):
        page = f"http://{page}"
    template = escaping("pipeline.report", ".").get_template("training/why.html")
    return template.render(found=found, page=None if page is None else page.partition("?")[0].rstrip("/"))
