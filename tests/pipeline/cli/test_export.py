"""`sluice export` beside a run whose tokenizer is a file, which the run knows by name and hash only."""

from __future__ import annotations

from pathlib import Path

import pytest

from lineage.index.output_index import TokenizerIdentity
from lineage.recipe import RecipeError
from pipeline.cli.export import tokenizer_files
from stages.tokens.tokenizer import load_tokenizer, train_bpe


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(train_bpe(["the harbour and the boats"] * 3, 270))
    return path


def identity(path: Path) -> TokenizerIdentity:
    tokenizer = load_tokenizer(str(path))
    return TokenizerIdentity(
        name=path.name, hash=tokenizer.hash, vocab_size=tokenizer.vocab_size, eot_id=tokenizer.eot_id
    )


def test_a_tokenizer_that_lies_elsewhere_is_left_out_and_said_so(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tokenizer_files(identity(file), None) == {}
    assert "mine.tiktoken is not here; --tokenizer" in capsys.readouterr().err


def test_a_tokenizer_that_is_named_is_exported(file: Path) -> None:
    exported = tokenizer_files(identity(file), str(file))
    assert list(exported) == ["tokenizer.tiktoken"]
    assert exported["tokenizer.tiktoken"] == load_tokenizer(str(file)).rank_bytes()


def test_another_tokenizer_is_refused(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tiktoken"
    other.write_bytes(train_bpe(["quite other words"] * 3, 262))
    with pytest.raises(RecipeError, match=r"other\.tiktoken: another tokenizer than mine\.tiktoken"):
        tokenizer_files(identity(file), str(other))
