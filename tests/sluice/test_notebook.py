"""docs/library.ipynb runs from top to bottom, in a kernel of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.checkout import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
NOTEBOOK = ROOT / "docs" / "library.ipynb"


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not [
        cell for cell in notebook.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)
    ]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_its_words_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory(prefix="nb-") as folder:  # a short name: Ray's sockets lie below it
        notebook = executed(Path(folder), monkeypatch)
    check(notebook)


def executed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notebook after its run, all of whose files lie in `folder`."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(folder / name))
    monkeypatch.setenv("TMPDIR", str(folder))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def check(notebook: Any) -> None:
    shown = "\n".join(text_of(cell) for cell in notebook.cells if cell.cell_type == "code")
    num, kept = map(int, re.findall(r"(\d+) documents, (\d+) kept", shown)[0])
    assert num > kept > 20
    assert "pydoc True None" in shown
    assert re.search(r"this False Finding\(.*rule='", shown)
    assert "duplicate by dedup.exact of https://" in shown
    assert f"\n{kept}\n" in shown
    assert "torch.Size([4, 64])" in shown
    assert "exit code 0 purged as target" in shown


def text_of(cell: Any) -> str:
    """What a cell printed and gave."""
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"
