"""Prove that a run has read a URL, a domain or a text, or that it has not.

  sluice prove RUN_OUTPUT --url https://example.org/page --to proof.json
  sluice prove RUN_OUTPUT --domain example.org --to proof.json       a registered domain, with all its hosts
  sluice prove RUN_OUTPUT --text article.txt --to proof.json         a clean text, character by character
  sluice prove RUN_OUTPUT --step 5000 --url URL                      another committed checkpoint than the newest

  python deploy/verify_proof.py ROOT proof.json                      the recipient checks the proof

The proof is against the root that sluice commit published. It shows how often the checkpoint has read the
subject, with the first and last step, or that it never did. The proof has at most 10 kB and shows no other URL, domain
or text. Near copies and quotations are different texts: use sluice scan to find them. A URL that was dropped as a
duplicate is absent, but its text is present. Exit code 0 either way."""

from __future__ import annotations

import argparse

from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json, add_run_output, count
from pipeline.cli.printing import print_json
from pipeline.terminal import visible


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_output(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", metavar="URL", help="the URL of a page (it is normalised)")
    what.add_argument(
        "--domain", metavar="DOMAIN", help="a registered domain with all its hosts, for example example.org"
    )
    what.add_argument(
        "--text", metavar="FILE", help="a text file in UTF-8: the text as the pipeline cleaned it"
    )
    parser.add_argument(
        "--step", type=count, metavar="T", help="prove against the checkpoint of T steps (the newest)"
    )
    parser.add_argument("--to", metavar="PROOF.json", help="write the proof to this file")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from pipeline.training.proofs import make_proof

    proof = make_proof(
        Folder(options.run_output),
        url=options.url,
        domain=options.domain,
        text=options.text,
        step=options.step,
        to=options.to,
    )
    if options.json:
        print_json(proof.as_json())
        return 0
    of, what, leaf = proof.commitment.checkpoint, f"{proof.kind} {proof.subject}", proof.leaf
    if leaf is not None:
        steps = f"first in step {leaf.first_step:,}, last in step {leaf.last_step:,}"
        print(visible(f"present: {what}: {of} has read it {leaf.readings:,} times, {steps}"))
    else:
        print(visible(f"absent: {what}: {of} has not read it"))
    print(f"root {proof.commitment.root}")
    if options.to:
        print(visible(f"check it: python deploy/verify_proof.py {proof.commitment.root} {options.to}"))
    return 0
