"""Encoding by tiktoken and by the tokenizers library on the same texts; and faults of tokens, planted and
looked for.

usage: python -m benchmarks.tokens CRAWL_DIR [--pages N] [--only NAME…]     megabytes a second of each kind of tokenizer
       python -m benchmarks.tokens --planted [--num N]                      of N planted faults, how many verify names

Speed: each tokenizer.json of tests/support/inputs/tokenizer_files.py (the families' own settings, small
vocabularies), and cl100k_base's 100,256 ranks written as a tokenizer.json, with the encoder that a run takes
and with the library alone, in turns, in processor time of one process. Ids are compared on the way; a
difference ends it with exit 1.

Planted faults: an output whose every checksum, length and hash is right, in which some documents' tokens are
not those of their texts."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.models import BPE

from benchmarks.support.texts import extracted_by_file
from lineage.verify.output import verify
from lineage.verify.retokenize import Retokenize
from stages.tokens.library_encoder import LibraryEncoder
from stages.tokens.tokenizer import Tokenizer, load_tokenizer, splitter
from stages.tokens.tokenizer_json import read_tokenizer_json
from stages.tokens.vocabulary import byte_level_alphabet, load_vocabulary
from tests.support.inputs.tokenizer_files import BY_LIBRARY, BY_TIKTOKEN, END, ENDS, saved
from tests.support.outputs.planted_tokens import FAULTS, make_planted_out
from tests.support.outputs.small_out.hooks import verify_hooks

_ROUNDS = 3


def seconds(encode: Callable[[str], object], texts: Sequence[str]) -> float:
    """Processor seconds for all texts."""
    started = time.process_time()
    for text in texts:
        encode(text)
    return time.process_time() - started


def large_file(folder: Path) -> str:
    """cl100k_base's ranks as a tokenizer.json, split as `sluice tokenizer train` splits: each token is the
    merge of the two into which the tokens before it cut it."""
    ranks = load_vocabulary("cl100k_base").ranks
    letters = {byte: letter for letter, byte in byte_level_alphabet().items()}

    def written(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            merged = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            at = merged.index(min(merged))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((written(parts[0]), written(parts[1])))
    tokenizer = HfTokenizer(BPE({written(token): rank for token, rank in ranks.items()}, merges))
    tokenizer.pre_tokenizer = splitter()
    tokenizer.add_special_tokens([END])
    path = folder / "cl100k_base.json"
    tokenizer.save(str(path))
    raw = json.loads(path.read_bytes())
    path.write_text(json.dumps(raw | {"normalizer": {"type": "NFC"}}))
    return str(path)


def measure(texts: Sequence[str], folder: Path, only: Sequence[str]) -> bool:
    """Print a line a tokenizer, or those named; whether all ids were equal."""
    kinds = {kind.__name__: kind for kind in (*BY_TIKTOKEN, *BY_LIBRARY)}
    wanted = only or [*kinds, "cl100k_base"]
    files = {name: (saved(kinds[name], folder), ENDS.get(kinds[name])) for name in wanted if name in kinds}
    if "cl100k_base" in wanted:
        files["cl100k_base"] = large_file(folder), None
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(
        f"{len(texts):,} texts, {size:.1f} MB of UTF-8; MB/s of processor time, the best of {_ROUNDS}"
        f" rounds\n"
    )
    print(
        "| tokenizer | encoder of a run | MB/s | the library alone, MB/s | times |\n| --- | --- | --- | --- |"
        " --- |"
    )
    equal = True
    for name, (path, end) in files.items():
        ours = load_tokenizer(path, end)
        library = LibraryEncoder(read_tokenizer_json(name, Path(path).read_bytes(), end))
        equal &= all(np.array_equal(ours.encode(text), library.encode_by_library(text)) for text in texts)
        took = [
            (seconds(ours.encode, texts), seconds(library.encode_by_library, texts)) for _ in range(_ROUNDS)
        ]
        best, alone = (size / min(side) for side in zip(*took, strict=True))
        by = "tokenizers" if ours.why_slow else "tiktoken"
        print(f"| {name} | {by} | {best:.2f} | {alone:.2f} | {best / alone:.1f} |", flush=True)
    return equal


def look_for_planted(num: int, folder: Path) -> bool:
    """Print a line a kind of fault; whether all were named, and nothing else."""
    planted = make_planted_out(str(folder / "out"), num)
    of_kind = Counter(planted.faults.values())
    named = {}
    for how, retokenize in (("plain", None), ("retokenize", _retokenize(planted.out.tokenizer))):
        found = verify(planted.out.folder, verify_hooks(), retokenize=retokenize)
        told = " ".join(f"{problem.where} {problem.message}" for problem in found.problems)
        named[how] = Counter(kind for doc_id, kind in planted.faults.items() if doc_id.hex() in told)
    print("| fault | planted | named by verify | by verify --retokenize |\n| --- | --- | --- | --- |")
    for kind in FAULTS:
        print(f"| {kind} | {of_kind[kind]} | {named['plain'][kind]} | {named['retokenize'][kind]} |")
    print(f"| all | {num} | {named['plain'].total()} | {named['retokenize'].total()} |")
    return named["retokenize"].total() == num


def _retokenize(tokenizer: Tokenizer) -> Retokenize:
    return Retokenize(encode_batch=tokenizer.encode_batch, decode=tokenizer.decode, keeps=tokenizer.keeps)


def main() -> int:
    """See the top."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("crawl", nargs="?", type=Path, help="a folder of crawl files")
    parser.add_argument("--pages", type=int, default=400, help="pages to encode (400)")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="NAME", help="the tokenizers to measure (all)"
    )
    parser.add_argument("--planted", action="store_true", help="plant faults and look for them")
    parser.add_argument("--num", type=int, default=200, help="faults to plant (200)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        if options.planted:
            return 0 if look_for_planted(options.num, Path(scratch)) else 1
        if options.crawl is None:
            parser.error("give a folder of crawl files, or --planted")
        texts = [
            text
            for of_file in extracted_by_file(options.crawl, "resiliparse", options.pages)
            for text in of_file
        ]
        return 0 if measure(texts, Path(scratch), options.only) else 1


if __name__ == "__main__":
    sys.exit(main())
