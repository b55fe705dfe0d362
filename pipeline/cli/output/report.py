"""Render a finished run as one self-contained HTML page: funnel, rules with examples, duplicates, shards, speed.

sluice report OUT        render OUT/report.html again and print its path
"""

from __future__ import annotations

import argparse

from lineage.index.checksums import CHECKSUMS_FILE, sum_file
from lineage.index.names import REPORT_FILE
from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.storage.lock import hold
from lineage.store.checksum_update import update_checksums
from pipeline.cli.arguments import add_json
from pipeline.cli.printing import print_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.report.render import render_output

    out = Folder(options.out)
    read_index(out)  # an output that is not finished is refused before its folder is held
    with hold(out, "sluice report", wait_seconds=10):
        # A purge that was waited for has deleted the files that an index read before it names.
        page = render_output(out, read_index(out))
        if not out.exists(REPORT_FILE) or out.read(REPORT_FILE) != page:
            out.publish(REPORT_FILE, page)
            if out.exists(CHECKSUMS_FILE):  # sums taken now of what was lost would vouch for any damage
                update_checksums(out, [sum_file(out, REPORT_FILE)])
    if options.json:
        print_json({"report": out.at(REPORT_FILE), "bytes": len(page)})
    else:
        print(out.at(REPORT_FILE))
    return 0
