"""A finished OUT of the articles that the demo's crawl is made of: text worth learning, in seconds and
without Ray."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from lineage.index.output_index import TokenizerIdentity, make_index, publish_index
from lineage.storage.folder import Folder
from lineage.store.checksum_update import cover_output
from lineage.store.delta import commit_tables
from pipeline.demo.crawl import KEPT_LANGUAGES
from pipeline.demo.pages import write_article
from stages.tokens.tokenizer import load_tokenizer, train_bpe
from tests.support.outputs.synthetic import write_shard

_VOCAB = 1536
_LEARNT_FROM = 200


def make_demo_output(folder: Path, num_articles: int = 2000) -> str:
    """Write it; one source of articles in the demo's languages, with a tokenizer learnt from the first of
    them."""
    rng = random.Random(0)
    texts = [
        write_article(KEPT_LANGUAGES[number % len(KEPT_LANGUAGES)], rng).text
        for number in range(num_articles)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.tiktoken").write_bytes(train_bpe(texts[:_LEARNT_FROM], _VOCAB))
    tokenizer = load_tokenizer(str(folder / "demo.tiktoken"))
    end = np.array([tokenizer.eot_id], dtype=np.uint32)
    tokens = np.concatenate([piece for text in texts for piece in (tokenizer.encode(text), end)])
    out = Folder(str(folder / "out"))
    identity = TokenizerIdentity(
        name=tokenizer.name, hash=tokenizer.hash, vocab_size=tokenizer.vocab_size, eot_id=tokenizer.eot_id
    )
    commit_tables(out, {})
    index = make_index(identity, [write_shard(out, "articles", 0, tokens)], (), ())
    cover_output(out, index)
    publish_index(out, index)
    return out.url
