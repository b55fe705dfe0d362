"""SIGUSR2 to a process of a training run before its recorder answers it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Sends itself the signal when it is about to import the module of its first argument.
CALL = """
import os, runpy, signal, sys
class Asking:
    def find_spec(self, name, path=None, target=None):
        if name == before:
            os.kill(os.getpid(), signal.SIGUSR2)
before, module = sys.argv[1:3]
sys.meta_path.insert(0, Asking())
del sys.argv[1:3]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("before", "module", "arguments"),
    [("torch", "trainer", []), ("trainer.run.preflight", "pipeline", ["train"])],
)
def test_a_start_goes_on_while_it_imports(
    tmp_path: Path, before: str, module: str, arguments: list[str]
) -> None:
    (tmp_path / "wrong.toml").write_text("[run]\n")
    ended = subprocess.run(
        [sys.executable, "-c", CALL, before, module, *arguments, str(tmp_path / "wrong.toml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "most recent call first" in ended.stderr
