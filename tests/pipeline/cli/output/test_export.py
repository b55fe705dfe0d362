"""`sluice export`: it tells a corpus from a training run, whose tokenizer it may know by name and hash
only."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lineage.index.output_index import NO_TOKENIZER, TokenizerIdentity
from lineage.recipe import RecipeError
from lineage.store.rows import ExportRow
from pipeline.cli.main import main
from pipeline.cli.output.export import how_to_read
from pipeline.export.checkpoint import tokenizer_files
from stages.tokens.tokenizer import load_tokenizer, train_bpe
from tests.support.outputs.small_out.output import make_small_out


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


def test_a_tokenizer_that_lies_elsewhere_is_left_out(file: Path) -> None:
    assert tokenizer_files(identity(file), None) == {}


def test_a_tokenizer_that_is_named_is_exported(file: Path) -> None:
    exported = tokenizer_files(identity(file), str(file))
    assert list(exported) == ["tokenizer.json", "tokenizer_config.json", "tokenizer.tiktoken"]
    assert exported["tokenizer.tiktoken"] == load_tokenizer(str(file)).rank_bytes()


def test_another_tokenizer_is_refused(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tiktoken"
    other.write_bytes(train_bpe(["quite other words"] * 3, 262))
    with pytest.raises(RecipeError, match=r"other\.tiktoken: another tokenizer than mine\.tiktoken"):
        tokenizer_files(identity(file), str(other))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "is the output of a data run: --format says how"),
        (
            ("--format", "jsonl", "--step", "3"),
            "--step: .* is the output of a data run, so this option does not apply",
        ),
        (("--format", "jsonl", "--tokens"), "--tokens: jsonl holds texts only"),
        (("--format", "jsonl", "--dtype", "uint16"), "--dtype: jsonl holds texts"),
        (("--format", "olmo", "--dtype", "uint16"), "100,277 ids"),
        (("--format", "nanochat", "--split", "a=0.5,b"), "has a split of its own"),
        (("--format", "olmo", "--source", "news"), "--source news: expected one of books, web"),
        (("--format", "olmo", "--num-cpus", "0"), "at least 1"),
    ],
)
def test_a_wrong_call_is_told_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], told: str
) -> None:
    make_small_out(str(tmp_path / "out"))
    assert main(["export", str(tmp_path / "out"), "--to", str(tmp_path / "copy"), *options]) == 2
    assert re.search(told, capsys.readouterr().err)
    assert not (tmp_path / "copy").exists()


def test_a_copy_is_told_with_what_its_reader_needs_to_know() -> None:
    facts: dict[str, Any] = dict.fromkeys(ExportRow.__dataclass_fields__, 0)
    row = ExportRow(**facts | {"format": "megatron", "place": "/copy", "num_tokens": 7})
    of_tokens = " ".join(
        how_to_read(row, TokenizerIdentity(name="mine", hash="", vocab_size=5_000, eot_id=4_999))
    )
    assert "tokens are those of mine: 5,000 ids, of which 4999 ends a document" in of_tokens
    assert "--data-path takes a file's path below /copy without its .bin" in of_tokens
    of_texts = list(how_to_read(replace(row, format="hf", num_tokens=0), NO_TOKENIZER))
    assert of_texts == ['Datasets: load_dataset("/copy"), a column dump for the source.']


def test_a_folder_that_is_neither_is_told_what_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), "--to", str(tmp_path / "copy")]) == 2
    assert re.search("neither index.json .* nor model.json", capsys.readouterr().err)
    (tmp_path / "model.json").write_text("{}")
    assert main(["export", str(tmp_path), "--to", str(tmp_path / "copy"), "--format", "jsonl"]) == 2
    assert "output of a training run" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--to", str(tmp_path / "copy"), "--split", "a"]) == 2
    assert "--split: " in capsys.readouterr().err
