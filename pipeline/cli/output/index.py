"""Write the columnar index of WARC files: a table of their pages in the form of Common Crawl's.

  sluice index OUT --to DIR                          the input files of a finished run, with the languages it found
  sluice index '/data/crawl/*.warc.gz' --to DIR      files, globs, URLs, or a *.paths.gz list
  sluice index /data/a.warc.gz /data/b.warc.gz --to DIR --crawl SPRING-2026

The table has a row for each HTML or text record with status 200: URL and host in parts, time, MIME type, charset,
digest, and file, offset and length of the record. Parquet files are written to DIR/crawl=NAME/subset=warc/. The command
prints the [[source]] that reads a selection of it (source.index, source.where), and any tool that reads Common Crawl's
table reads it.

Each WARC file is read once, in this process. After a kill the same call writes the index again."""

from __future__ import annotations

import argparse
import json

from lineage.index.output_index import check_outside
from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json
from pipeline.cli.printing import print_json
from pipeline.phases.progress import ProgressReporter
from pipeline.terminal import counted


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "outs",
        nargs="+",
        metavar="OUT|WARC",
        help="a finished run's output, or WARC files: paths, globs, URLs",
    )
    parser.add_argument(
        "--to", required=True, metavar="DIR", help="the folder to write: on disk, s3://, gs://, az://"
    )
    parser.add_argument("--crawl", default="own", metavar="NAME", help="the value of the column crawl (own)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.columnar_index import write_index

    check_outside("--to", options.to, is_folder=True)
    reporter = ProgressReporter(quiet=options.json)
    with reporter.phase("index WARC files", 1) as progress:
        written = write_index(
            options.outs,
            Folder(options.to),
            options.crawl,
            lambda done, of: progress.step(1 / of, f"{done:,} of {of:,}"),
        )
    if options.json:
        print_json({
            "index": written.index, "root": written.root, "num_records": written.num_records,
            "num_files": written.num_files, "num_inside": written.num_inside, "passed_over": list(written.passed_over),
        })  # fmt: skip
        return 0
    for line in written.passed_over:
        print(line)
    if written.num_inside:
        print(
            f"{counted(written.num_inside, 'record')} lie with others in one compressed member, and are left out:"
            " warcio recompress FILE NEW packs each alone"
        )
    print(
        f"{counted(written.num_records, 'page')} of {counted(written.num_files, 'WARC file')}. To read a selection:"
    )
    values = {
        "name": options.crawl,
        "index": written.index,
        "root": written.root,
        "where": "fetch_status = 200",
    }
    print("\n[[source]]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()), sep="\n")
    return 0
