"""docs/library.ipynb, executed: `python -m tests.support.notebook` stores its outputs.

Python's own docstrings are its texts, and differ from one release of Python to another: outputs are compared under the
release that stored them."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import nbclient
import nbformat

from tests.support.checkout import ROOT

NOTEBOOK = ROOT / "docs" / "library.ipynb"


def executed(folder: Path) -> Any:
    """The notebook after its run in a kernel of its own, all of whose files lie in `folder`."""
    private = {name: str(folder / name) for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with mock.patch.dict(os.environ, {**private, "TMPDIR": str(folder), "PYTHONPATH": path}):
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = nbclient.NotebookClient(
            notebook, timeout=600, record_timing=False, resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # Warnings of the machine, and what depends on the speed of its disk.
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python", "version": platform.python_version()}
    return notebook


def shown(notebook: Any) -> list[list[dict[str, Any]]]:
    """What each code cell printed and gave; what one stream printed in pieces is one."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            parts: list[dict[str, Any]] = []
            for output in cell.outputs:
                if parts and output.output_type == "stream" and output.name == parts[-1].get("name"):
                    parts[-1]["text"] += output.text
                else:
                    parts.append(dict(output))
            found.append(parts)
    return found


if __name__ == "__main__":
    with TemporaryDirectory(prefix="nb-") as place:  # a short name: sockets lie below it
        made = executed(Path(place))
    nbformat.write(made, NOTEBOOK)
