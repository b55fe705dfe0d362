"""Recipes over the tiny crawl that keep texts after parse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.outputs import runs

Tables = dict[str, dict[str, Any]]
KEEPING: Tables = {"run": {"keep_text": True}, "tokenize": {"shard_tokens": 8_000}}
RULES = ["gopher_quality", "gopher_repetition", "c4"]
CUTTING: Tables = {"quality": {"rules": [*RULES, "fineweb"], "c4_terminal_punctuation": False}}
EDITING: Tables = {"quality": {"rules": RULES, "ledger": "all"}}


def recipe(crawl: Path, out: str, *tables: Tables) -> dict[str, Any]:
    """A recipe over the crawl that keeps texts, with more tables laid over it."""
    sources = {"web": (f"{crawl}/web-*.warc.gz",), "posts": (f"{crawl}/posts-*.jsonl",)}
    plain = runs.recipe(out, sources, **KEEPING)
    for more in tables:
        for name, table in more.items():
            plain[name] = {**plain.get(name, {}), **table}
    return plain
