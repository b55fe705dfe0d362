"""Certify the removal of purged documents from a model, check a certificate, or compare two runs.

  sluice certify RUN_OUTPUT --to cert.json                  the newest checkpoint, all purges of its training data
  sluice certify RUN_OUTPUT --purge ID --to cert.json       for these purges only
  sluice certify --check cert.json RUN_OUTPUT               verify every statement of the certificate
  sluice certify --check cert.json RUN_OUTPUT OUT           the outputs that the run read, if they have moved
  sluice certify RUN_OUTPUT --against OTHER_RUN             whether weights and moments equal those of another run

The certificate (and cert.html, for printing) states:
  the purged documents, as a digest of their ids;
  how often the run read them, and that the weights hold none of these readings;
  the chain of attempts from the first step;
  a digest of weights and moments that does not depend on the layout;
  the limits of the certificate.
A checkpoint that contains readings of purged documents is not certified: sluice train RECIPE --forget replays
the steps without them. Exit code 1 if the model cannot be certified, a line fails, or weights differ."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.arguments import add_json, add_outs_read, add_run_output
from pipeline.cli.printing import print_json
from pipeline.terminal import counted, visible


def configure(parser: argparse.ArgumentParser) -> None:
    add_run_output(parser)
    add_outs_read(parser)
    parser.add_argument("--purge", nargs="+", default=[], metavar="ID", help="only these purges (all)")
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--to", metavar="CERT.json", help="write the certificate to this file, and its page beside it"
    )
    way.add_argument("--check", metavar="CERT.json", help="check a certificate")
    parser.add_argument("--against", metavar="OTHER_RUN", help="compare with the same step of another run")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    output = Folder(options.run_output)
    if options.to is None and options.check is None and options.against is None:
        raise RecipeError("expected --to CERT.json, --check CERT.json or --against OTHER_RUN")
    if options.outs and options.check is None and options.to is None:
        raise RecipeError(f"{options.outs[0]!r}: an OUT goes with --to and --check")
    if options.purge and options.to is None:
        raise RecipeError("--purge goes with --to alone: --check takes the purges of the certificate")
    result: dict[str, object] = {}
    if options.to is not None:
        result |= _write(options, output)
    if options.check is not None:
        result |= _check(options, output)
    if options.against is not None:
        result |= _compare(options, output)
    if options.json:
        print_json(result)
    return 0 if result.get("holds", True) and result.get("equal", True) else 1


def _write(options: argparse.Namespace, output: Folder) -> dict[str, object]:
    from pipeline.training.certify import make_certificate

    made = make_certificate(output, options.purge, options.outs, options.to)
    row, certified = made.row, made.certified
    if not options.json:
        readings = sum(purge["readings"] for purge in row["purges"])
        line = (
            f"{certified.checkpoint.name} of run {certified.run!r}: {counted(readings, 'reading')} of documents of"
            f" {counted(len(row['purges']), 'purge')}, 0 applied. Certificate: {options.to}; page: {made.page}"
        )
        print(visible(line))
        print(visible(f"  read {certified.read}"))
        for gap in row["not_covered"]:
            print(visible(f"  not covered: {gap['kind']} {gap['what']}: {gap['why']}"))
    return {"certificate": options.to, "page": made.page, "read": certified.read, **row}


def _check(options: argparse.Namespace, output: Folder) -> dict[str, object]:
    from pipeline.training.certify import check_certificate

    lines = check_certificate(options.check, output, options.outs)
    if not options.json:
        for line in lines:
            print(
                visible(f"{'yes' if line.holds else 'NO '}  {line.what}{': ' + line.why if line.why else ''}")
            )
    return {"holds": all(line.holds for line in lines), "lines": [asdict(line) for line in lines]}


def _compare(options: argparse.Namespace, output: Folder) -> dict[str, object]:
    from pipeline.training.certify import compare_runs

    found = compare_runs(output, Folder(options.against))
    if not options.json:
        print(visible(f"read {found.read[0]} and {found.read[1]}"))
        print(visible(f"{'equal' if found.equal else 'DIFFERENT'}: {found.why}"))
    return {"equal": found.equal, "why": found.why, "read": list(found.read)}
