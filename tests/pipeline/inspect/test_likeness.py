"""What a target text looks like among the sources of a finished output, by the commands."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.ids import content_hash
from lineage.index.output_index import PartFile, TokenizerIdentity, make_index, publish_index
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.inspect.likeness import texts_of
from tests.support.outputs import runs
from trainer.options import DataTable

TEXTS = {
    "law": ["the court ruled on the appeal", "the judge read the verdict", "an appeal to the court"],
    "food": ["boil the rice in salted water", "bake the bread until brown", "salt the water and boil"],
}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """Of an output whose sources have three kept texts each, a purged one and two copies of the last."""
    out = Folder(str(tmp_path / "out"))
    parts: dict[str, list[PartFile]] = {"documents": [], "dedup": []}
    for source, texts in TEXTS.items():
        ids = [content_hash(text.encode()) for text in texts]
        rows = [*texts[:2], None, texts[2], texts[2], texts[2]]
        tables = {
            "documents": {"doc_id": [*ids[:2], b"\0" * 16, ids[2], b"\1" * 16, b"\1" * 16], "text": rows},
            "dedup": {"part_row": [0, 1, 3], "doc_id": ids},
        }
        for name, columns in tables.items():
            data = io.BytesIO()
            pq.write_table(pa.table(columns), data)
            file = f"{name}/{source}/part-00000.parquet"
            out.publish(file, data.getvalue())
            digest, num_rows = content_hash(data.getvalue()).hex(), len(columns["doc_id"])
            parts[name].append(PartFile(source=source, part=0, file=file, num_rows=num_rows, hash=digest))
    tokenizer = TokenizerIdentity(name="tiny", hash="00" * 16, vocab_size=250, eot_id=249)
    publish_index(out, make_index(tokenizer, [], **parts))
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'[run]\nname = "r"\n[train]\ndata = [{{out = "{out.url}", prefix = "x-"}}]\noutput ='
        f' "{tmp_path}/run"\n'
        'model = "debug"\nseq_len = 8\nglobal_batch = 2\nsteps = 1\n'
    )
    return str(path)


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "target.jsonl"
    path.write_text('{"text": "the court ruled"}\n{"text": "an appeal # to the judge"}\n')
    return str(path)


def test_em_gives_the_source_that_shares_the_targets_words(
    recipe: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mix", "em", recipe, "--against", target, "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)["shares"]
    assert set(shares) == {"x-law", "x-food"}
    assert shares["x-law"] > 0.95


def test_dsir_chooses_documents_like_the_target_and_tells_their_worth(
    recipe: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "chosen.jsonl"
    assert main(["mix", "dsir", recipe, "--against", target, "--keep", "2", "--to", str(to), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["by_source"] == {"x-law": 2}
    assert (told["num_documents"], told["num_chosen"]) == (6, 2)
    assert 1.0 <= told["effective_sample_size"] < 4.0
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    ids = {content_hash(text.encode()).hex() for text in TEXTS["law"]}
    assert {row["doc_id"] for row in rows} < ids


@pytest.mark.parametrize("name", ["em", "dsir"])
def test_sources_of_one_name_in_two_outputs_are_not_taken_for_one(
    name: str, recipe: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = tmp_path / "chosen.jsonl"
    more = ["--keep", "2", "--to", str(chosen)] if name == "dsir" else []
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    both = f'train.data=[{{out = "{tmp_path}/out"}}, {{out = "{tmp_path}/copy", prefix = "PREFIX"}}]'
    command = ["mix", name, recipe, "--against", target, *more, "--set"]
    assert main([*command, both.replace("PREFIX", "")]) == 2
    told = "two outputs of train.data have a source 'food': give one of them a prefix"
    assert told in capsys.readouterr().err and not chosen.exists()
    assert main([*command, both.replace("PREFIX", "copied-")]) == 0


def test_documents_count_as_often_as_an_epoch_reads_them(tmp_path: Path) -> None:
    texts = ["seldom read words", *["often read words"] * 3, *["read twice at most"] * 2]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    table = {"by": "cluster_size", "table": {"1": 0, "2": 1, "3": 4}}
    plain = runs.recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "in.jsonl"),)}, repeat=table)
    plain["source"][0]["steps"] = ["parse", "identity", "dedup.exact"]
    del plain["language"]
    runs.run(tmp_path, plain)
    found = texts_of((DataTable(out=str(tmp_path / "out")),))
    assert {text.text: text.repeats for text in found} == {"often read words": 4, "read twice at most": 1}


def test_more_documents_than_there_are_and_an_empty_target_are_refused(
    recipe: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = str(tmp_path / "chosen.jsonl")
    assert main(["mix", "dsir", recipe, "--against", target, "--keep", "7", "--to", to]) == 2
    assert "6 kept texts" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["mix", "em", recipe, "--against", str(tmp_path / "empty.jsonl")]) == 2
    assert "holds no text" in capsys.readouterr().err
