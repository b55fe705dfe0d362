"""A small OUT for the tests of replays: of few ids, so that a model's checkpoints are small."""

from __future__ import annotations

import pytest

from stages.tokens.tokenizer import load_tokenizer, train_bpe
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.outputs.small_out.records import make_records


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    folder = tmp_path_factory.mktemp("small")
    texts = [record.text for record in make_records()[0]]
    (folder / "few.tiktoken").write_bytes(train_bpe(texts, 512))
    return make_small_out(str(folder / "out"), tokenizer=load_tokenizer(str(folder / "few.tiktoken")))
