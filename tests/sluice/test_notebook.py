"""docs/library.ipynb runs from top to bottom, in a kernel of its own, and shows what is stored in it."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from tests.support.notebook import NOTEBOOK, executed, shown  # noqa: E402 - behind what it needs


@pytest.fixture(scope="module")
def stored() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_stored_notebook_has_the_outputs_of_one_run_and_nothing_of_the_machine(stored: Any) -> None:
    nbformat.validate(stored)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(not cell.metadata for cell in code), "times of the run"
    said = "\n".join(map(str, shown(stored)))
    assert not re.search(r"/(tmp|root|home|work|dev|usr|opt|var)/|stderr", said)
    assert NOTEBOOK.stat().st_size < 64 << 10
    check(stored)


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_is_stored(stored: Any) -> None:
    with TemporaryDirectory(prefix="nb-") as folder:  # a short name: sockets lie below it
        made = executed(Path(folder))
    check(made)
    if stored.metadata["language_info"]["version"] == platform.python_version():
        assert shown(made) == shown(stored), "where what it shows has changed on purpose: make notebook"


def check(notebook: Any) -> None:
    """What the notebook's words say, under every release of Python."""
    said = "\n".join(
        output.get("text") or output.get("data", {}).get("text/plain", "")
        for cell in shown(notebook)
        for output in cell
    )
    num, kept = map(int, re.findall(r"(\d+) documents, (\d+) kept", said)[0])
    assert num > kept > 20
    assert "pydoc True None" in said
    assert re.search(r"this False Finding\(.*rule='", said)
    assert "duplicate by dedup.exact of https://" in said
    assert f"\n{kept}\n" in said
    assert "torch.Size([4, 64])" in said
    assert "12 steps, 3,072 tokens, finished: True" in said
    assert "verified: True purged as target" in said
    assert "refused: True" in said
    assert re.search(r"1 document: [1-9]\d* readings, 0 of them in the weights", said)
    assert "every line holds: True" in said
    assert said.endswith("True")
