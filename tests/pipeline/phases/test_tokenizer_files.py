"""Runs whose tokenizer is a tokenizer.json: their shards hold the library's ids, and they say what ends a
document."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline import process
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from pipeline.inspect.retokenize import retokenizing
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import load
from tests.support.inputs import tokenizer_files as kinds
from tests.support.inputs.tokenizer_files import LINES, Kind, library_ids, made, saved
from tests.support.outputs.runs import recipe, write_recipe

TEXTS = [
    f"{line} And so on, number {number}{', with a </s> and an <|endoftext|>' * (number % 3 == 0)}."
    for number, line in enumerate(LINES[:30])
]


def recipe_file(folder: Path, encoding: str, **tokenize: str) -> Path:
    rows = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    (folder / "posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = recipe(str(folder / "out"), {"posts": (str(folder / "posts.jsonl"),)})
    plain["source"][0]["steps"] = ["parse"]
    plain |= {"tokenize": {"encoding": encoding, "shard_tokens": 2_000, **tokenize}}
    return write_recipe(folder / "recipe.toml", plain)


@pytest.mark.parametrize(
    ("kind", "end", "given"),
    [
        (kinds.llama2, "</s>", {}),
        (kinds.qwen, "<|endoftext|>", {}),
        (kinds.deepseek, "<｜end▁of▁sentence｜>", {}),
        (kinds.bert, "[SEP]", {"end_of_text": "[SEP]"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_shards_hold_the_library_s_ids_and_verify_encodes_them_again(
    kind: Kind, end: str, given: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe_file(tmp_path, saved(kind, tmp_path), **given)
    process.run(load(path), ProgressReporter())
    out = Folder(str(tmp_path / "out"))
    index, said = read_index(out), " ".join(capsys.readouterr().err.split())
    assert (index.tokenizer.name, index.tokenizer.vocab_size) == (
        f"{kind.__name__}.json",
        made(kind).get_vocab_size(),
    )
    assert index.tokenizer.eot_id == made(kind).token_to_id(end)
    assert f"Each document ends with {end} (id {index.tokenizer.eot_id})" in said
    assert ("the tokenizers library encodes" in said) == (kind is not kinds.qwen)
    texts = {}
    for part in index.documents:
        texts |= {row["doc_id"]: row["text"] for row in pq.read_table(out.at(part.file)).to_pylist()}
    num = num_compared = 0
    for shard in index.shards:
        tokens = np.fromfile(out.at(shard.file), "<u4")
        for row in pq.read_table(out.at(shard.index_file)).to_pylist():
            placed = tokens[row["start"] :][: row["num_tokens"]].tolist()
            if "</s>" not in texts[row["doc_id"]]:
                assert placed == [*library_ids(kind, texts[row["doc_id"]]), index.tokenizer.eot_id]
                num_compared += 1
            assert placed.count(index.tokenizer.eot_id) == 1
            num += 1
    assert (num, num_compared) == (30, 20)
    with retokenizing(out, 1.0, None, ProgressReporter(quiet=True)) as retokenize:
        found = verify(out, verify_hooks(out), retokenize=retokenize)
    assert found.problems == () and found.num_retokenized == num
    assert "How documents begin and end" in out.read("report.html").decode()


def test_a_doubt_about_the_end_is_exit_2_and_names_the_special_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe_file(tmp_path, saved(kinds.bert, tmp_path))
    assert main(["run", str(path)]) == 2
    assert "tokenize.end_of_text: which token of bert.json ends a document?" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="no such special token"):
        process.run(
            load(recipe_file(tmp_path, saved(kinds.bert, tmp_path), end_of_text="[EOD]")), ProgressReporter()
        )
