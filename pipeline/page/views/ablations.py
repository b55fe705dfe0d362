"""The ablations whose proxy runs read a corpus: what each run's mixture came to, and the report of all."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lineage.ids import content_hash
from lineage.storage.folder import Folder
from lineage.trace.exposure import TrainingRun
from lineage.trace.tracer import UnknownError
from pipeline.inspect.trace.tracing import UNREADABLE
from pipeline.report.training.mix import REPORT

MOST_ROWS: Final = 200
_RESULTS: Final = "results.csv"
_MOST_BYTES: Final = 4 << 20
_UNSHOWN: Final = ("tokens", "seconds", "order_fingerprint")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAblation:
    """An ablation by the folder that holds its runs; `key` names it in an address. `columns` and `rows` are
    those of its results, the first MOST_ROWS of `num_rows`; there are none until all runs are done, or where
    they cannot be read. `has_report`: `sluice mix report` was written."""

    key: str
    folder: str
    num_runs: int
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_rows: int
    has_report: bool


def ablations_of(runs: Sequence[TrainingRun]) -> list[ShownAblation]:
    """The ablations of these runs, by folder. A proxy's output is <ablation>/mix/runs/<name>."""
    outputs: dict[str, int] = {}
    for run in runs:
        folder, mark, _ = run.output.rpartition("/mix/runs/")
        if mark:
            outputs[f"{folder}/mix"] = outputs.get(f"{folder}/mix", 0) + 1
    return [_shown(folder, num) for folder, num in sorted(outputs.items())]


def report_of(runs: Sequence[TrainingRun], key: str) -> bytes:
    """The report of an ablation of these runs. UnknownError where there is none."""
    found = next((each for each in ablations_of(runs) if each.key == key), None)
    if found is None or not found.has_report:
        raise UnknownError(
            f"no ablation {key!r} with a report has read this corpus: `sluice mix report` writes one"
        )
    return Folder(found.folder).read(REPORT)


def _shown(url: str, num_runs: int) -> ShownAblation:
    columns, rows, has_report = [], [], False
    try:
        folder = Folder(url)
        has_report = folder.exists(REPORT)
        if folder.exists(_RESULTS):
            text = folder.read_range(_RESULTS, 0, min(folder.size(_RESULTS), _MOST_BYTES)).decode()
            columns, *rows = csv.reader(io.StringIO(text))
    except (*UNREADABLE, csv.Error):
        columns, rows = [], []
    wanted = [number for number, name in enumerate(columns) if name not in _UNSHOWN]
    whole = [row for row in rows if len(row) == len(columns)]
    return ShownAblation(
        key=content_hash(url.encode()).hex()[:12],
        folder=url,
        num_runs=num_runs,
        columns=tuple(columns[number] for number in wanted),
        rows=tuple(tuple(row[number] for number in wanted) for row in whole[:MOST_ROWS]),
        num_rows=len(whole),
        has_report=has_report,
    )
