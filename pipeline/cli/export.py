"""A checkpoint as safetensors with config.json and the tokenizer, as the Llama ecosystem expects them.

sluice export RUN_OUTPUT --to DIR             the newest checkpoint
sluice export RUN_OUTPUT --step 200 --to DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lineage.index.output_index import check_outside
from lineage.storage.folder import Folder
from pipeline.cli.common import add_json, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", metavar="RUN_OUTPUT", help="train.output of a training run")
    parser.add_argument("--step", type=int, metavar="T", help="the checkpoint of T steps (the newest)")
    parser.add_argument("--to", required=True, metavar="DIR", help="the folder to write")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from stages.tokens.tokenizer import load_tokenizer
    from trainer.huggingface.export import export_run, read_card

    check_outside("--to", options.to)
    output = Folder(options.output)
    named = read_card(output).tokenizer
    tokenizer = load_tokenizer(named.name)
    files = {"tokenizer.tiktoken": tokenizer.rank_bytes()} if tokenizer.hash == named.hash else {}
    checkpoint = export_run(output, Path(options.to), step=options.step, tokenizer_files=files)
    if options.json:
        print_json({"step": checkpoint.step, "folder": options.to})
    else:
        print(f"{options.to}: checkpoint of step {checkpoint.step}")
    return 0
