"""How the process of a command ends: all that it said is there, and what waits for its end is waited for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.checkout import ROOT

# A command that says a line and comes to 3, in a process that registered a function for its end.
CALL = """
import atexit, sys, threading, time
from pipeline.cli import main as cli

def command():
    print("said")
    return 3

cli.main = command
atexit.register(print, "at its end")
{more}
cli.console()
"""
IN_A_THREAD = """
def work():
    time.sleep(.3)
    print("worked")

threading.Thread(target=work).start()
"""


def ended(more: str = "", stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CALL.format(more=more)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("", ["said", "at its end"]),
        (IN_A_THREAD, ["said", "worked", "at its end"]),
        ("sys.modules['ray'] = sys", ["said", "at its end"]),
    ],
)
def test_a_command_ends_with_its_code_and_all_that_was_said(more: str, said: list[str]) -> None:
    found = ended(more)
    assert (found.returncode, found.stdout.splitlines(), found.stderr) == (3, said, "")


def test_where_nobody_reads_the_end_is_pythons_own() -> None:
    """120 is what Python ends with where its last words do not get out."""
    read, write = os.pipe()
    os.close(read)
    try:
        found = ended(stdout=write)
    finally:
        os.close(write)
    assert found.returncode == 120 and "BrokenPipeError" in found.stderr


def test_a_reader_of_the_overview_that_leaves_gets_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        call = [sys.executable, "-m", "pipeline", "--help"]
        found = subprocess.run(call, check=False, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(write)
    assert (found.returncode, found.stderr) == (1, "")
