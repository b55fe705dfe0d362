"""The report as one self-contained HTML page: no script, no font, no picture from anywhere else."""

from __future__ import annotations

import jinja2

from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from pipeline.report.collect import collect, human_bytes
from pipeline.report.data import ReportData

REPORT = "report.html"


def escaping(package: str, folder: str) -> jinja2.Environment:
    """The templates of a package's folder. Whatever they show is escaped, and a name that they do not know is an error;
    the filter `number` sets commas."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, folder), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["number"] = lambda value: f"{value:,}"
    return environment


def render(data: ReportData) -> str:
    """The page. Everything that came from the crawl is escaped."""
    environment = escaping("pipeline.report", ".")
    environment.filters["bytes"] = human_bytes
    return environment.get_template("report.html").render(data=data)


def render_output(out: Folder, index: Index) -> bytes:
    """The report of an output, as bytes of UTF-8; `index` is what its index.json says, or is about to say."""
    return render(collect(out, index)).encode("utf-8", "replace")
