"""Recompute every checksum and balance of a finished output, and list what does not hold.

File and block checksums, the tokens of every document, its texts, the balance of every step as counts and as digests of
ids, placements against shards, lineage against everything, and for every duplicate its edge to a kept document.
Exit 0: all of it holds. Exit 1: something does not; each line names what and where.
At most 1,000 problems are listed, and the last line says whether there are more.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json
from pipeline.cli.printing import print_json
from pipeline.terminal import visible


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lineage.verify.output import verify
    from pipeline.inspect.hooks import verify_hooks

    out = Folder(options.out)
    found = verify(out, verify_hooks(out))
    if options.json:
        print_json(
            {
                "ok": not found.problems,
                "num_files": found.num_files,
                "num_documents": found.num_documents,
                "num_tokens": found.num_tokens,
                "has_more": found.has_more,
                "problems": [asdict(problem) for problem in found.problems],
                "notes": [asdict(note) for note in found.notes],
            }
        )
        return 1 if found.problems else 0
    for problem in found.problems:
        print(visible(str(problem)))
    for note in found.notes:
        print(visible(f"note: {note}"))
    counts = f"{found.num_files:,} files, {found.num_documents:,} documents, {found.num_tokens:,} tokens"
    if found.has_more:
        print(f"The first {len(found.problems):,} problems, and there are more: mend these and verify again")
    else:
        print(f"{len(found.problems):,} problems in {counts}" if found.problems else f"All of it holds: {counts}.")
    return 1 if found.problems else 0
