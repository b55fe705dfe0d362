"""Recompute every checksum and count of a finished output, and list all mismatches.

The command checks file and block checksums; the tokens and texts of every document; documents in and out of
every step, as counts and as digests of ids; placements against shards; lineage against all files; and the edge
of every duplicate to a kept document. --retokenize encodes each text again: text and shard must give the same
tokens, and the tokens must decode to the text. A SHARE below 1 checks that share of the documents, chosen by a
keyed hash of their ids, so it is the same share each time.

  sluice verify OUT --retokenize
  sluice verify OUT --retokenize 0.01

The recipe names the tokenizer; --tokenizer gives the present path of its file. A tokenizer that did not make
the shards is refused (exit code 2). Exit code 0: no mismatch. Exit code 1: mismatches; each line names one and
its place. At most 1,000 are listed, and the last line says whether there are more. A note names a run or purge
that is active on the output: verify again when it has ended."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lineage.storage.folder import Folder
from lineage.store.rows import PurgeRow
from pipeline.cli.arguments import add_json
from pipeline.cli.printing import print_json
from pipeline.phases.progress import ProgressReporter
from pipeline.terminal import counted, visible


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    parser.add_argument(
        "--retokenize",
        nargs="?",
        type=_share,
        const=1.0,
        metavar="SHARE",
        help="compare texts with tokens, both ways, for this share of the documents (1)",
    )
    parser.add_argument("--tokenizer", metavar="FILE", help="the present path of the shards' tokenizer")
    add_json(parser)


def _share(value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(
            f"{value!r} is no share above 0 and up to 1 (OUT stands before --retokenize)"
        )
    return share


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.verification import verify_output

    found = verify_output(
        Folder(options.out), ProgressReporter(), retokenize=options.retokenize, tokenizer=options.tokenizer
    )
    if options.json:
        print_json(found.as_json())
        return 0 if found.ok else 1
    for problem in found.problems:
        print(visible(str(problem)))
    for note in found.notes:
        print(visible(f"note: {note}"))
    counts = ", ".join(
        (
            counted(found.num_files, "file"),
            counted(found.num_documents, "document"),
            counted(found.num_tokens, "token"),
        )
    )
    if options.retokenize is not None:
        counts += f", {found.num_retokenized:,} texts encoded again"
    if found.has_more:
        print(f"The first {len(found.problems):,} problems, and there are more: mend these and verify again")
    else:
        print(
            f"All checks passed: {counts}." if found.ok else f"{len(found.problems):,} problems in {counts}"
        )
    _print_proved(found.purges)
    return 0 if found.ok else 1


def _print_proved(purges: Sequence[PurgeRow]) -> None:
    """A paragraph for who asked for the purges, a line each."""
    if not purges:
        return
    print(
        "\nProved for each purge: all its tokens are end-of-text, and no text of its documents is left in this"
        " output."
    )
    for row in purges:
        counts = f"{counted(row.num_documents, 'document')}, {counted(row.num_tokens, 'token')}"
        print(visible(f"  {row.at}  {row.purge_id}  {counts}  by {row.by}: {row.reason}"))
