"""Commit to the training data of a run: publish one hash over the readings of every URL, domain and text.

  sluice commit RUN_OUTPUT              the newest checkpoint of the run; prints the root
  sluice commit RUN_OUTPUT OUT…         the outputs that the run read, if they have moved
  sluice commit RUN_OUTPUT --workers 8  the same root, sooner

The root is a Merkle root over sorted keyed hashes: of the URL (normal form), the registered domain and the clean text
of each document that is in the weights, with the number of readings, first and last step. It reveals none of them.
Publish it; sluice prove then answers "was my work used?" with a proof that anyone can check against it
(deploy/verify_proof.py). A run commits by itself when it ends and when it is certified."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json, add_outs_read, add_run_output, count
from pipeline.cli.printing import print_json
from pipeline.terminal import visible


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_output(parser)
    add_outs_read(parser)
    parser.add_argument(
        "--workers", type=count, default=1, metavar="N", help="number of hashing processes (1)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from trainer.evidence.commitment.commit import commit_run

    output = Folder(options.run_output)
    commitment = commit_run(output, options.outs, workers=options.workers)
    if options.json:
        print_json({"root": commitment.root, **asdict(commitment)})
        return 0
    print(f"root {commitment.root}")
    print(
        visible(
            f"{commitment.num_leaves:,} leaves (URLs, domains and texts that {commitment.checkpoint} of run"
            f" {commitment.run!r} has read), in {output.at('commitments')}"
        )
    )
    if commitment.init_from is not None:
        print(f"not covered: what the weights had read that the run began with ({commitment.init_from})")
    return 0
