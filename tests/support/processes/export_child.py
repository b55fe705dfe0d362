"""An export that kills its own process at a chosen act of writing."""

from __future__ import annotations

from lineage.storage.folder import Folder
from pipeline.export.process import CorpusExport, export, in_process
from pipeline.export.request import ExportRequest
from tests.support.processes.purge_child import Countdown, count_acts


def export_killed(out: str, to: str, format_name: str, fatal: int) -> int:
    """Export `out` to the folder `to`, in a process of its own; gives how many acts there were. `fatal`: the
    act at which it dies, -1 for never."""
    countdown = Countdown(fatal)
    count_acts(countdown)
    request = ExportRequest(format=format_name, file_documents=30)
    export(CorpusExport(out=Folder(out), to=Folder(to), name="copy", request=request), in_process)
    return countdown.acts
