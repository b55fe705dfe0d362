"""Files that people write: what is not UTF-8 is named with its line and what to do about it."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from lineage.recipe import RecipeError, read_toml
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.inputs.files import list_inputs
from pipeline.inspect.purge_targets import listed_targets
from pipeline.recipe.tables import SourceTable
from stages.steps.benchmark_items import read_items
from stages.steps.textfiles import numbered_lines
from trainer.mix.swarm import read_swarm

TEXT = "# Künstler\nhttps://münchen.example/\n"
READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "a recipe": ("r.toml", read_toml),
    "a list of a step": ("hosts.txt", lambda path: list(numbered_lines(path))),
    "a takedown list": ("urls.csv", lambda path: listed_targets(Folder("/nowhere"), path)),
    "a list of inputs": ("all.paths", lambda path: list_inputs(SourceTable(name="web", inputs=(path,)))),
    "a benchmark": ("items.jsonl", lambda path: read_items(path, "text")),
    "a table of runs": ("weights.csv", lambda path: read_swarm(path, path)),
}


@pytest.mark.parametrize("what", READERS)
def test_a_file_in_another_encoding_is_to_be_saved_as_utf_8(what: str, tmp_path: Path) -> None:
    name, read = READERS[what]
    path = tmp_path / name
    path.write_bytes(TEXT.replace("Künstler", "Artist").encode("cp1252"))
    with pytest.raises(
        RecipeError, match=r"is not UTF-8 \(byte 0xfc in line 2\).*: save it as UTF-8"
    ) as refused:
        read(str(path))
    assert str(path) in str(refused.value)
    path.write_bytes(TEXT.encode("utf-16"))
    with pytest.raises(RecipeError, match="is UTF-16: save it as UTF-8"):
        read(str(path))


@pytest.mark.parametrize("what", READERS)
def test_a_file_that_is_no_text_is_told(what: str, tmp_path: Path) -> None:
    name, read = READERS[what]
    path = tmp_path / name
    kinds = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstandard.compress}
    if what == "a list of inputs":  # which is unpacked by its first bytes
        del kinds["gzip"]
    for kind, compress in kinds.items():
        path.write_bytes(compress(TEXT.encode()))
        with pytest.raises(
            RecipeError, match=rf"is compressed \({kind}\): unpack it, and name the text file"
        ):
            read(str(path))
    path.write_bytes(b"one line\nand \0 a byte")
    with pytest.raises(RecipeError, match="is no text in UTF-8: it holds the byte 0x00 in line 2"):
        read(str(path))


def test_a_list_of_words_may_begin_as_bzip2_does(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("BZh\nPK\n")
    assert list(numbered_lines(str(tmp_path / "words.txt"))) == [(1, "BZh"), (2, "PK")]


def test_recipe_check_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_bytes(TEXT.encode("cp1252"))
    assert main(["recipe", "check", str(tmp_path / "r.toml")]) == 2
    assert "is not UTF-8 (byte 0xfc in line 1)" in capsys.readouterr().err


def test_a_line_of_a_benchmark_may_hold_any_character_that_json_lets_stand(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes('\ufeff{"text": "one\u2028two\x85three"}\r\n\r\n{"text": "four"}'.encode())
    assert read_items(str(path), "text") == ["one\u2028two\x85three", "four"]
