"""A followed job's log on a terminal: a live line for each phase, and everything else as the job printed
it."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from pipeline.jobs.live_log import LiveLog
from pipeline.phases import progress
from pipeline.phases.progress import ProgressReporter, parse_line

LOG = """6 input files, 28.9 MB
read and filter: 18% after 20 s, about 90 s left, 189 documents, 261.9 kB/s of input
read and filter: 100% after 89 s, 1,138 documents, 324.8 kB/s of input
read and filter          89.0 s  1,138 documents, 324.8 kB/s of input
compare: 50% after 12 s, about 12 s left, near
compare                  24.0 s  260 documents
10% after all: a line that is none \x1b[31m
and no end"""


def test_progress_is_a_live_line_and_all_else_stays() -> None:
    shown = io.StringIO()
    with LiveLog(Console(file=shown, force_terminal=True, width=200)) as log:
        for piece in (LOG[start : start + 7] for start in range(0, len(LOG), 7)):
            log.write(piece)
    text = shown.getvalue()
    kept = [line for line in LOG.split("\n") if parse_line(line) is None]
    for line in kept[:-2]:
        assert line in text
    assert "and no end" in text and "\\x1b[31m" in text, "a job's log cannot steer the terminal"
    assert "18%" in text and "189 documents, 261.9 kB/s of input" in text
    assert "read and filter: 18%" not in text, "it is drawn, not printed"


def test_what_a_phase_prints_is_read_back_and_told_though_nothing_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_SECONDS", 0.01)
    with ProgressReporter().phase("read and filter", 4) as phase:
        phase.step(1, "7 documents, 1.0 kB/s of input")
        while not (told := capsys.readouterr().err):
            time.sleep(0.005)
    found = parse_line(told.splitlines()[0])
    assert found is not None
    assert (found.name, found.share, found.note) == (
        "read and filter",
        0.25,
        "7 documents, 1.0 kB/s of input",
    )
    assert "read and filter " in capsys.readouterr().err
