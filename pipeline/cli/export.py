"""A checkpoint as safetensors with config.json and the tokenizer, as the Llama ecosystem expects them.

sluice export RUN_OUTPUT --to DIR             the newest checkpoint
sluice export RUN_OUTPUT --step 200 --to DIR
sluice export RUN_OUTPUT --tokenizer my.tiktoken --to DIR

A run knows a tokenizer that is a file by its name and hash only: --tokenizer says where the file lies. Without it the
weights are exported alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lineage.index.output_index import TokenizerIdentity, check_outside
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.common import add_json, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", metavar="RUN_OUTPUT", help="train.output of a training run")
    parser.add_argument("--step", type=int, metavar="T", help="the checkpoint of T steps (the newest)")
    parser.add_argument("--tokenizer", metavar="FILE", help="the tokenizer of the training data, where it is a file")
    parser.add_argument("--to", required=True, metavar="DIR", help="the folder to write")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from trainer.huggingface.export import export_run, read_card

    check_outside("--to", options.to)
    output = Folder(options.output)
    files = tokenizer_files(read_card(output).tokenizer, options.tokenizer)
    checkpoint = export_run(output, Path(options.to), step=options.step, tokenizer_files=files)
    if options.json:
        print_json({"step": checkpoint.step, "folder": options.to})
    else:
        print(f"{options.to}: checkpoint of step {checkpoint.step}")
    return 0


def tokenizer_files(named: TokenizerIdentity, given: str | None) -> dict[str, bytes]:
    """The tokenizer's file as it is exported: the one of that name or, if given, the one at `given`; none where the
    name leads nowhere. RecipeError where `given` is another tokenizer."""
    from stages.tokens.tokenizer import Tokenizer, load_tokenizer

    tokenizer: Tokenizer | None = None
    try:
        tokenizer = load_tokenizer(given or named.name)
    except RecipeError:
        if given is not None:
            raise
    if tokenizer is not None and tokenizer.hash == named.hash:
        return {"tokenizer.tiktoken": tokenizer.rank_bytes()}
    if given is not None:
        raise RecipeError(f"--tokenizer {given}: another tokenizer than {named.name}, with which the data was made")
    print(f"without the tokenizer: {named.name} is not here; --tokenizer says where its file lies", file=sys.stderr)
    return {}
