"""`sluice export --check`: an exported folder is compared with its run, part by part."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.export.checkpoint import export_checkpoint
from stages.tokens.tokenizer import load_tokenizer, train_bpe
from tests.support.outputs.runs import recipe
from tests.support.outputs.runs import run as run_pipeline
from tests.support.training.training_runs import Run

TEXTS = [f"The gulls and the boats of the harbour, in the year {1700 + number}." for number in range(90)]
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
HASH = "hash of the weights in sluice.json"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on tokens of own.tiktoken, the export of its checkpoint, and that of a mean of two."""
    folder = tmp_path_factory.mktemp("read_back")
    (folder / "own.tiktoken").write_bytes(train_bpe(TEXTS, 280))
    (folder / "other.tiktoken").write_bytes(train_bpe(TEXTS, 270))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    plain = recipe(
        str(folder / "out"),
        {"web": (str(folder / "texts.jsonl"),)},
        tokenize={"encoding": str(folder / "own.tiktoken")},
    )
    plain["source"][0]["steps"] = ["parse"]
    run_pipeline(folder / "work", plain)
    changes = {"steps": 4, "global_batch": 2, "dtype": "fp32", "checkpoint": {"every": 2}}
    Run(data=str(folder / "out"), output=folder / "run", changes=changes).start()
    own = str(folder / "own.tiktoken")
    export_checkpoint(Folder(str(folder / "run")), str(folder / "hf"), step=2, tokenizer=own)
    export_checkpoint(Folder(str(folder / "run")), str(folder / "mean"), average=2, tokenizer=own)
    return folder


def checked(capsys: pytest.CaptureFixture[str], *call: str) -> tuple[int, dict[str, str]]:
    """The exit code, and of each part why it does not hold."""
    code = main(["export", *call, "--json"])
    plain: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert plain["holds"] == (code == 0)
    return code, {row["part"]: row["why"] or "" for row in plain["parts"]}


@pytest.mark.parametrize("name", ["hf", "mean"])
def test_an_untouched_export_is_equal_in_every_part(
    world: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, parts = checked(capsys, "--check", str(world / name))
    assert code == 0 and len(parts) == 5 and not any(parts.values())
    steps = "checkpoint of 2 steps" if name == "hf" else "checkpoints of 2, 4 steps"
    assert f"every tensor of the {steps}, bit for bit" in parts


def test_a_changed_part_is_named_with_how_it_differs(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed(name: str) -> Path:
        return Path(shutil.copytree(world / "hf", tmp_path / name))

    folder = changed("weights")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] += 0.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    code, parts = checked(capsys, "--check", str(folder))
    weights = "every tensor of the checkpoint of 2 steps, bit for bit"
    assert code == 1 and parts[weights] == "model.norm.weight differs by up to 0.5" and parts[HASH]

    folder = changed("dtype")
    halves = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    assert "is torch.bfloat16" in checked(capsys, "--check", str(folder))[1][weights]

    folder = changed("config")
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-3}))
    (folder / GENERATION).unlink()
    code, parts = checked(capsys, "--check", str(folder))
    assert code == 1 and "max_position_embeddings is 4096, the run's is 32" in parts[CONFIG]
    assert parts[GENERATION] == "is not there" and not parts[weights]

    folder = changed("tokenizer")
    other = load_tokenizer(str(world / "other.tiktoken"))
    (folder / TOKENIZER).write_bytes(other.files()[TOKENIZER])
    assert checked(capsys, "--check", str(folder))[1][TOKENIZER]
    (folder / TOKENIZER).unlink()
    assert (
        "is not there: transformers, lm-eval and vLLM"
        in checked(capsys, "--check", str(folder))[1][TOKENIZER]
    )


def test_a_run_that_moved_is_named_and_a_folder_of_others_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(world / "hf", tmp_path / "hf"))
    row = json.loads((folder / "sluice.json").read_text())
    (folder / "sluice.json").write_text(json.dumps(row | {"output": str(tmp_path / "gone")}))
    assert main(["export", "--check", str(folder)]) == 2
    assert "gone" in capsys.readouterr().err
    assert checked(capsys, str(world / "run"), "--check", str(folder))[0] == 0
    (folder / "sluice.json").unlink()
    assert main(["export", "--check", str(folder)]) == 2
    assert (
        "has no sluice.json: expected a folder that `sluice export RUN_OUTPUT` wrote"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (["--check", "hf", "--to", "x"], "--to: --check hf writes nothing, so this option does not apply"),
        (["run"], "expected an output and --to DIR, the folder to write; or --check DIR"),
        (["--to", "x"], "expected an output and --to DIR"),
    ],
)
def test_a_wrong_call_is_told(call: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *call]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", [CONFIG, GENERATION])
def test_a_file_that_is_no_object_is_told(
    world: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(world / "hf", tmp_path / "hf"))
    (folder / name).write_text("[]")
    assert main(["export", "--check", str(folder)]) == (2 if name == CONFIG else 1)
    shown = capsys.readouterr()
    assert "config.json: expected a table" in shown.err or "is no object of JSON" in shown.out


def test_an_export_that_was_cut_off_is_told(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(world / "hf", tmp_path / "hf"))
    (folder / CONFIG).unlink()
    assert main(["export", "--check", str(folder)]) == 1
    assert "has no config.json, which an export writes last" in capsys.readouterr().err
    assert main(["export", str(world / "run"), "--step", "2", "--to", str(folder)]) == 0
    assert (folder / CONFIG).exists()


def test_an_export_replaces_no_model_of_others_and_goes_into_no_corpus(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    held = {CONFIG: b"{}", "model-00001-of-00002.safetensors": b"theirs"}
    for name, data in held.items():
        (theirs / name).write_bytes(data)
    assert main(["export", str(world / "run"), "--to", str(theirs)]) == 2
    assert "holds a model that no `sluice export` wrote" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in theirs.iterdir()} == held
    assert main(["export", str(world / "run"), "--to", str(world / "out")]) == 2
    assert "a finished output, to which nothing is added" in capsys.readouterr().err
    assert not (world / "out" / CONFIG).exists()


def test_an_export_leaves_no_tokenizer_of_an_earlier_one_whose_ids_are_others(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(world / "hf", tmp_path / "hf"))
    own = {path.name for path in folder.iterdir() if path.name.startswith("tokenizer")}
    assert own == {TOKENIZER, "tokenizer_config.json", "tokenizer.tiktoken"}
    call = ["export", str(world / "run"), "--to", str(folder)]
    assert main(call) == 0  # own.tiktoken is not named, and what the folder has of it are the same ids
    assert own < {path.name for path in folder.iterdir()}
    row = json.loads((folder / "sluice.json").read_text())
    other = load_tokenizer(str(world / "other.tiktoken"))
    row["tokenizer"] |= {"name": other.name, "hash": other.hash}
    (folder / "sluice.json").write_text(json.dumps(row))
    for name, data in other.files().items():
        (folder / name).write_bytes(data)
    assert main(call) == 0
    assert "without the tokenizer" in capsys.readouterr().err
    assert not own & {path.name for path in folder.iterdir()}
