"""Train a tokenizer from a run's clean texts.

  sluice tokenizer train OUT --vocab 32000 --to my.tiktoken

A byte-level BPE over every text in OUT/documents; the same texts give the same file. Use it in a recipe as
[tokenize] encoding = "my.tiktoken".
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from lineage.index import read_index
from lineage.storage import Folder
from pipeline.cli.common import add_json, check_outside, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    train = actions.add_parser("train", help="learn the merges from a run's clean texts")
    train.add_argument("out", metavar="OUT", help="a finished run's output: a folder or an s3:// URL")
    train.add_argument("--vocab", type=int, required=True, metavar="N", help="ids, end-of-text included (at least 257)")
    train.add_argument("--to", required=True, metavar="FILE", help="the .tiktoken file to write")
    add_json(train)


def run(options: argparse.Namespace) -> int:
    from stages.tokenizer import load_tokenizer, train_bpe

    target = Path(options.to)
    check_outside("--to", options.to)
    ranks = train_bpe(clean_texts(Folder(options.out)), options.vocab)
    Folder(str(target.resolve().parent)).publish(target.name, ranks)
    tokenizer = load_tokenizer(str(target))
    result = {"file": str(target), "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash}
    if options.json:
        print_json(result)
    else:
        print(f"{target}: {tokenizer.vocab_size} ids, hash {tokenizer.hash}")
    return 0


def clean_texts(out: Folder) -> Iterator[str]:
    """Every clean text of a run that was not purged, part by part."""
    for part in read_index(out).documents:
        with out.open(part.file) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(batch_size=1024, columns=["text"]):
                yield from (text for text in batch["text"].to_pylist() if text is not None)
