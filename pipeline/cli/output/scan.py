"""Find documents that contain given texts, for example the items of a benchmark, with evidence.

  sluice scan OUT --against benchmark.jsonl --to scan.json
  sluice scan OUT --against benchmark.jsonl --to scan.json --runs
  sluice purge OUT --from scan.json --reason "leaked benchmark" --by you

A document matches if its text equals an item, is a near-duplicate of one (MinHash, verified), or shares an
n-gram with one. 13w: 13 words in lower case without punctuation (GPT-3). 8t: 8-grams of the tokens of such
words that cover more than half of the item (Tülu 3). n-grams found in more than 10 documents are ignored. The
scan also searches for each item with personal data replaced as the pipeline does.

Above --max-share the evidence is written and marked so that a purge refuses it; the exit code is 1. --runs
reports for each training run the first step that read an item, the number of readings and the last clean
checkpoint, and prints a table per benchmark for a model card."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lineage.index.output_index import check_outside
from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json, share
from pipeline.cli.errors import FailedError
from pipeline.cli.printing import print_json
from pipeline.phases.progress import ProgressReporter
from pipeline.terminal import visible

if TYPE_CHECKING:
    from pipeline.inspect.scan.evidence import ScanEvidence


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    parser.add_argument(
        "--against",
        required=True,
        action="append",
        metavar="FILE.jsonl",
        help="the texts to find, one object per line; repeatable",
    )
    parser.add_argument(
        "--to", required=True, metavar="SCAN.json", help="the evidence file to write (not under OUT)"
    )
    parser.add_argument("--field", default="text", help="the key of the text (text); a.b means b inside a")
    parser.add_argument(
        "--ngram", choices=["13w", "8t"], default="13w", help="13-grams of words, or 8-grams of tokens"
    )
    parser.add_argument(
        "--control", metavar="FILE.jsonl", help="texts known to be clean: count false positives"
    )
    parser.add_argument(
        "--max-share",
        type=share,
        metavar="X",
        help="share of documents above which a purge refuses the evidence (0.01, or ten documents if that is"
        " more)",
    )
    parser.add_argument(
        "--runs",
        nargs="*",
        metavar="RUN_OUTPUT",
        help="report the items that training runs read: runs recorded in OUT's store, and these training"
        " outputs",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.inspect.scan.evidence import write_evidence
    from pipeline.inspect.scan.scan import ScanRequest, scan

    check_outside("--to", options.to)
    evidence = scan(
        Folder(options.out),
        ScanRequest(
            against=tuple(dict.fromkeys(options.against)),
            field=options.field,
            ngram=options.ngram,
            control=options.control,
            max_share=options.max_share,
            runs=None if options.runs is None else tuple(options.runs),
        ),
        ProgressReporter(),
    )
    write_evidence(evidence, options.to)
    if options.json:
        plain = evidence.to_json()
        del plain["documents"]
        print_json(plain | {"evidence": options.to})
    else:
        _print(evidence, options.to)
    if evidence.refused:
        raise FailedError(
            f"{evidence.num_found:,} of {evidence.num_documents:,} documents hold an item, a share of"
            f" {evidence.share:.2%}, above --max-share {evidence.max_share:g}: a purge will refuse this"
            " evidence. Look at it; if it is right, scan again with a higher --max-share."
        )
    return 0


def _print(evidence: ScanEvidence, to: str) -> None:
    found, items = evidence.found_items, evidence.num_items
    print(
        f"{len(found)} of {items} items found in {evidence.num_found} of {evidence.num_documents} documents"
    )
    control = evidence.control
    if control is not None:
        print(f"control: {control.flagged} of {control.num} clean texts flagged ({control.rate:.2%})")
    if evidence.runs is not None:
        from pipeline.inspect.scan.scanned_runs import run_lines

        for line in run_lines(evidence.runs):
            print(visible(line))
    print(f"evidence: {visible(to)}")
