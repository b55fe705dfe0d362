"""Recompute every checksum and balance of a finished output, and list what does not hold.

File and block checksums, the tokens of every document, its texts, the balance of every step as counts and as
digests of ids, placements against shards, lineage against everything, and for every duplicate its edge to a
kept document. With --retokenize each text is encoded again: it must give the tokens that its shard holds, and
they must give the text. A SHARE below 1 takes that share of the documents, by a keyed hash of their ids, so
the same ones each time.

  sluice verify OUT --retokenize
  sluice verify OUT --retokenize 0.01

The recipe names the tokenizer; --tokenizer says where its file lies now. Another than the one that made the
shards is refused (exit 2). Exit 0: all of it holds. Exit 1: something does not; each line names what and
where. At most 1,000 problems are listed, and the last line says whether there are more. A run or purge that
is at the output meanwhile is named by a note: verify again when it has ended."""

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
        help="compare texts with tokens, and back: of this share of the documents (1)",
    )
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="the tokenizer of the shards, where it lies elsewhere now"
    )
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
        print(f"All of it holds: {counts}." if found.ok else f"{len(found.problems):,} problems in {counts}")
    _print_proved(found.purges)
    return 0 if found.ok else 1


def _print_proved(purges: Sequence[PurgeRow]) -> None:
    """A paragraph for who asked for the purges, a line each."""
    if not purges:
        return
    print(
        "\nProved of each purge: all its tokens are end-of-text, and none of its documents has a text here"
        " any more."
    )
    for row in purges:
        counts = f"{counted(row.num_documents, 'document')}, {counted(row.num_tokens, 'token')}"
        print(visible(f"  {row.at}  {row.purge_id}  {counts}  by {row.by}: {row.reason}"))
