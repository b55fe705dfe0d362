"""A small world for evaluations: a corpus with its own tokenizer, and files of texts and questions that are made of
the same words."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.tokens.tokenizer import train_bpe
from tests.support.outputs.runs import recipe
from tests.support.outputs.runs import run as run_pipeline

WORDS = [
    "harbour", "boat", "gull", "net", "wind", "tide", "rope", "anchor", "lantern", "captain", "storm", "map", "island",
    "reef", "sail", "mast", "deck", "cargo", "fog", "bell", "Straße", "naïve", "čluny", "море", "волна", "港口", "海",
    "fisherman's", "well-known", "1789", "3.14", "(north)", '"home"',
]  # fmt: skip


def text(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=num_words))


def questions(rng: random.Random, num: int, num_words: int = 18) -> list[dict[str, Any]]:
    """Rows with question, choices and answer; some choices are of several lengths and scripts."""
    return [
        {
            "question": text(rng, num_words) + "?",
            "choices": [text(rng, rng.randint(1, 5)) for _ in range(4)],
            "answer": rng.randrange(4),
        }
        for _ in range(num)
    ]


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return file


def make_out(folder: Path, texts: Sequence[str], name: str = "out", source: str = "web") -> str:
    """A finished output of a data run whose documents are these texts, tokens of `<folder>/own.tiktoken`."""
    tokenizer = folder / "own.tiktoken"
    if not tokenizer.exists():
        tokenizer.write_bytes(train_bpe(texts, 320))
    rows = [{"id": f"{name}/{number}", "text": one} for number, one in enumerate(texts)]
    plain = recipe(
        str(folder / name),
        {source: (str(write_rows(folder / f"{name}.jsonl", rows)),)},
        tokenize={"encoding": str(tokenizer)},
    )
    plain["source"][0]["steps"] = ["parse"]
    run_pipeline(folder / f"{name}-work", plain)
    return str(folder / name)
