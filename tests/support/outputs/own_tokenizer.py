"""A finished run whose shards hold ids of a tokenizer trained on its texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from stages.tokens.tokenizer import train_bpe
from tests.support.outputs.runs import recipe, run


def make_own_tokenizer_out(folder: Path, texts: Sequence[str], num_ids: int) -> None:
    """The output `out` in a folder, of texts.jsonl and own.tiktoken beside it."""
    (folder / "own.tiktoken").write_bytes(train_bpe(texts, num_ids))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    plain = recipe(
        str(folder / "out"),
        {"web": (str(folder / "texts.jsonl"),)},
        tokenize={"encoding": str(folder / "own.tiktoken")},
    )
    plain["source"][0]["steps"] = ["parse"]
    run(folder / "work", plain)
