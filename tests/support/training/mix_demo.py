"""Three sources of the demo's texts with planted quality, and two examinations that only one of them each
prepares for.

books     English prose             exam_en   more of it, only evaluated
news      German prose              exam_de   likewise
boards    spam of every kind, and most of the tokens: so neither the natural nor the uniform mixture is a good one"""

from __future__ import annotations

import json
import random
from pathlib import Path

import tomli_w

from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.demo.spam import SPAM
from stages.tokens.tokenizer import train_bpe

TARGETS = {"exam_en": 0.6, "exam_de": 0.4}
_VOCAB = 1536
_NUM_TEXTS = {"books": 300, "news": 300, "boards": 1100, "exam_en": 120, "exam_de": 120}


def make_output(folder: Path) -> Path:
    """The texts through `sluice run`, unfiltered; the finished output."""
    rng = random.Random(0)
    texts = {source: [_text(source, rng) for _ in range(num)] for source, num in _NUM_TEXTS.items()}
    folder.mkdir(parents=True)
    for source, own in texts.items():
        rows = [{"id": str(number), "text": text} for number, text in enumerate(own)]
        (folder / f"{source}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "small.tiktoken").write_bytes(
        train_bpe((text for own in texts.values() for text in own[:60]), _VOCAB)
    )
    recipe = {
        "run": {"name": "mix-demo", "output": str(folder / "out")},
        "source": [
            {"name": source, "inputs": [str(folder / f"{source}.jsonl")], "steps": ["parse", "identity"]}
            for source in texts
        ],
        "tokenize": {"encoding": str(folder / "small.tiktoken")},
        "ray": {"address": "none"},
    }
    (folder / "data.toml").write_text(tomli_w.dumps(recipe))
    assert main(["run", str(folder / "data.toml")]) == 0
    return folder / "out"


def _text(source: str, rng: random.Random) -> str:
    if source == "boards":
        return rng.choice(list(SPAM.values()))(rng)
    return write_article("de" if source in ("news", "exam_de") else "en", rng).text


def write_recipe(out: Path, folder: Path) -> Path:
    """A training recipe whose ablation has 25 runs of the debug model, a few seconds each."""
    recipe = {
        "run": {"name": "mix-demo-train", "seed": 1},
        "train": {
            "data": str(out),
            "output": str(folder / "run"),
            "model": "debug",
            "seq_len": 64,
            "global_batch": 8,
            "steps": 200,
            "validation": 0.05,
            "order": {"mixture_block": 200},
        },
        "mix": {
            "runs": 18,
            "replicates": 3,
            "held_out": 4,
            "caps": dict.fromkeys(TARGETS, 0.0),
            "targets": TARGETS,
            # A language that a run never sees costs it eight nats, and no law fits that and what matters.
            "floors": {"books": 0.05, "news": 0.05},
            "proxy": {"tokens": 200 * 8 * 64, "lr": 3e-3},
        },
    }
    path = folder / "train.toml"
    path.write_text(tomli_w.dumps(recipe))
    return path
