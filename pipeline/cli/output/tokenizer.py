"""Train a tokenizer on a run's clean texts.

  sluice tokenizer train OUT --vocab 32000 --to my.tiktoken

The tokenizer is a byte-level BPE trained on every text in OUT/documents; the same texts give the same file. A
recipe uses it as [tokenize] encoding = "my.tiktoken".
"""

from __future__ import annotations

import argparse

from lineage.index.output_index import check_outside, read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder, split
from pipeline.cli.arguments import add_action, add_json
from pipeline.cli.printing import print_json
from pipeline.results.rows import clean_texts


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    train = add_action(actions, "train", "learn the merges from a run's clean texts", __doc__)
    train.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    train.add_argument(
        "--vocab",
        type=int,
        required=True,
        metavar="N",
        help="size of the vocabulary, end-of-text included (at least 257)",
    )
    train.add_argument("--to", required=True, metavar="FILE", help="the .tiktoken file to write")
    add_json(train)


def run(options: argparse.Namespace) -> int:
    from stages.tokens.tokenizer import load_tokenizer, train_bpe

    if not options.to.endswith(".tiktoken"):
        raise RecipeError(
            f"--to {options.to}: expected a name that ends in .tiktoken, by which a recipe knows its kind"
        )
    check_outside("--to", options.to)
    out, (folder, name) = Folder(options.out), split(options.to)
    texts = (found.text for part in read_index(out).documents for found in clean_texts(out, part))
    folder.publish(name, train_bpe(texts, options.vocab))
    tokenizer = load_tokenizer(options.to)
    result = {"file": options.to, "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash}
    if options.json:
        print_json(result)
    else:
        print(f"{options.to}: {tokenizer.vocab_size} ids, hash {tokenizer.hash}")
    return 0
