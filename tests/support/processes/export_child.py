"""An export that kills its own process at a chosen act of writing.

`python -m tests.support.processes.export_child OUT DIR FORMAT ACT`. ACT -1: never; then it prints how many
acts there were."""

from __future__ import annotations

import sys

from lineage.storage.folder import Folder
from pipeline.export.process import CorpusExport, export, in_process
from pipeline.export.request import ExportRequest
from tests.support.processes.purge_child import Countdown, count_acts


def main() -> None:
    out, to, format_name, fatal = sys.argv[1:]
    countdown = Countdown(int(fatal))
    count_acts(countdown)
    request = ExportRequest(format=format_name, file_documents=30)
    export(CorpusExport(out=Folder(out), to=Folder(to), name="copy", request=request), in_process)
    print(countdown.acts)


if __name__ == "__main__":
    main()
