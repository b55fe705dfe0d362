"""The report as one self-contained HTML page: no script, no font, no picture from anywhere else."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket
from rich.filesize import decimal

from lineage.index.names import REPORT_FILE
from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from pipeline.report.collect import collect, state_of
from pipeline.report.data import ReportData
from pipeline.terminal import counted

_STATE = re.compile(rb'<meta name="sluice-state" content="([0-9a-f]{32})">')


class _BesideOurs(jinja2.BytecodeCache):
    """Compiled templates as Python keeps compiled modules: in this package's __pycache__, unless Python is to
    write no bytecode, or may not. To compile the report's takes a small run 3 % of its processor time."""

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError), self._file(bucket).open("rb") as file:
            bucket.load_bytecode(file)  # none where the template or Jinja is another

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        file = self._file(bucket)
        attempt = file.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            file.parent.mkdir(exist_ok=True)
            attempt.write_bytes(bucket.bytecode_to_string())
            attempt.replace(file)

    def _file(self, bucket: Bucket) -> Path:
        return Path(__file__).with_name("__pycache__") / f"{bucket.key}.{sys.implementation.cache_tag}.jinja"


def escaping(package: str, folder: str) -> jinja2.Environment:
    """The templates of a package's folder. Whatever they show is escaped, and a name that they do not know is
    an error; the filter `number` sets commas, `of` counts what a word names."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, folder),
        bytecode_cache=_BesideOurs(),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": lambda value: f"{value:,}", "of": counted}
    return environment


def render(data: ReportData) -> str:
    """The page. Everything that came from the crawl is escaped."""
    return _environment().get_template("report.html").render(data=data)


@functools.cache
def _environment() -> jinja2.Environment:
    """The report's templates. One for all reports of a process: it keeps them compiled, which takes longer
    than a small run's page."""
    environment = escaping("pipeline.report", ".")
    environment.filters["bytes"] = lambda size: decimal(size) if size else "–"
    return environment


def render_output(out: Folder, index: Index) -> bytes:
    """The report of an output, as bytes of UTF-8; `index` is what its index.json says, or is about to say."""
    return render(collect(out, index)).encode("utf-8", "replace")


def stale_report(out: Folder, index: Index) -> str | None:
    """What is wrong with the report of an output if it shows another state than its index and its purges;
    else None."""
    purges = read_table(out, "purges")["purge_id"].to_pylist()
    found = _STATE.search(out.read(REPORT_FILE))
    if found is not None and found[1].decode() == state_of(index, purges):
        return None
    missing = f"version {index.version} with its {counted(len(purges), 'purge')}"
    return f"does not show {missing}; sluice report {shlex.quote(out.url)} renders it again"
