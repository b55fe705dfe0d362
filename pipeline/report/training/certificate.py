"""A certificate as one self-contained HTML page that prints, in the look of a run's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lineage.storage.folder import Folder
from pipeline.report.render import escaping


def render_certificate(row: Mapping[str, Any]) -> str:
    """The page of a certificate. What stands in it is escaped."""
    applied = sum(purge["applied"] for purge in row["purges"])
    return (
        escaping("pipeline.report", ".")
        .get_template("training/certificate.html")
        .render(row=row, applied=applied)
    )


def publish_page(to: Folder, name: str, row: Mapping[str, Any]) -> str:
    """Write the page beside the certificate `name`; gives the page's name."""
    page = name.removesuffix(".json") + ".html"
    to.publish(page, render_certificate(row).encode())
    return page
