"""`sluice sample`: text of a run's checkpoint and of its export, beside what transformers makes of that folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import transformers

import sluice
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.export.checkpoint import export_checkpoint
from pipeline.training.opened import open_text_model
from pipeline.training.sampling import Asked, Sampling
from tests.support.outputs.own_tokenizer import make_own_tokenizer_out
from tests.support.training.training_runs import Run
from trainer.attempts import attempts

TEXTS = [
    f"The {name} of the harbour saw {1700 + number} ships. «Où?» 東京の船 {number} 🚢 came in."
    for number in range(60)
    for name in ("gulls", "nets")
]
PROMPTS = [
    "The", "The gulls", "The gulls of the harbour", "The nets of the", "ships", "«Où", "東京", "🚢", " saw", "came in.",
    "The harbour saw 17", "1", "of", "The gulls of the harbour saw 1712 ships.", "nets nets nets", "in", "x", "Où?» 東",
    "harbour saw", "The ne",
]  # fmt: skip
NUM_NEW = 40
MODELS = ("debug", "gemma3-debug", "olmo3-debug", "gpt-oss-debug", "deepseek-debug")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("sampled")
    make_own_tokenizer_out(folder, TEXTS, 300)
    return folder


def trained(world: Path, model: str) -> str:
    """The output of a short run, and its export beside it."""
    output = world / model
    if not output.exists():
        changes = {
            "model": model,
            "steps": 12,
            "seq_len": 128,
            "checkpoint": {"every": 6},
            "record_batches": False,
        }
        Run(data=str(world / "out"), output=output, changes=changes).start()
        export_checkpoint(Folder(str(output)), f"{output}-hf", tokenizer=str(world / "own.tiktoken"))
    return str(output)


def sampled(capsys: pytest.CaptureFixture[str], *call: str) -> dict[str, Any]:
    assert main(["sample", *call, "--json"]) == 0
    plain: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plain


@pytest.mark.parametrize("model", MODELS)
def test_greedy_text_is_that_of_generate_on_the_exported_folder(
    world: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = trained(world, model)
    own = ("--tokenizer", str(world / "own.tiktoken"), "--tokens", str(NUM_NEW))
    ours = sampled(capsys, output, *PROMPTS, *own)
    assert ours["step"] == 12
    exported = sampled(capsys, f"{output}-hf", *PROMPTS, "--tokens", str(NUM_NEW))
    assert exported["samples"] == ours["samples"] and exported["step"] is None
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{output}-hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        f"{output}-hf", dtype="float64", attn_implementation="eager", experts_implementation="eager"
    ).eval()
    # A model has a multiple of 128 ids, of which the last are no tokens; a young one gives them a chance.
    none = list(range(len(tokenizer), theirs.config.vocab_size))
    for prompt, sample in zip(PROMPTS, ours["samples"], strict=True):
        asked = tokenizer(prompt, return_tensors="pt")
        made = theirs.generate(
            **asked, max_new_tokens=NUM_NEW, do_sample=False, suppress_tokens=none or None
        )[0].tolist()
        behind = made[asked["input_ids"].shape[1] :]
        if behind and behind[-1] == tokenizer.eos_token_id:
            behind = behind[:-1]
        assert list(sample["tokens"]) == behind
        assert tokenizer.decode(made, skip_special_tokens=True) == prompt + sample["text"]


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_text_ends_at_each_id_that_a_folder_of_others_names(
    world: Path, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(f"{trained(world, 'debug')}-hf", tmp_path / "folder"))
    (folder / "sluice.json").unlink()
    (before,) = sampled(capsys, str(folder), "The gulls", "--tokens", "9")["samples"]
    config = json.loads((folder / file).read_text())
    last = before["tokens"][-1]
    (folder / file).write_text(json.dumps(config | {"eos_token_id": [config["eos_token_id"], last]}))
    (after,) = sampled(capsys, str(folder), "The gulls", "--tokens", "9")["samples"]
    assert (after["tokens"], after["ended"]) == (
        before["tokens"][: before["tokens"].index(last)],
        "end of text",
    )


def test_an_older_checkpoint_is_another_model_and_a_text_ends_where_it_was_asked_to(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, own = trained(world, "debug"), ("--tokenizer", str(world / "own.tiktoken"))
    old = sampled(capsys, output, "The", *own, "--step", "6")
    assert old["step"] == 6
    (short,) = sampled(capsys, output, "The", *own, "--tokens", "3")["samples"]
    assert (len(short["tokens"]), short["ended"]) == (3, "tokens")
    (none,) = sampled(capsys, output, "The", *own, "--tokens", "0")["samples"]
    assert (none["text"], none["ended"]) == ("", "tokens")
    (long,) = sampled(capsys, output, "The", *own, "--tokens", "5000", "--temperature", "9")["samples"]
    assert long["ended"] in ("context", "end of text") and len(long["tokens"]) <= 127


def test_the_terminal_has_prompt_and_text_piece_by_piece_without_control_characters(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [
        trained(world, "debug"),
        "The\x1b[31m",
        "--tokenizer",
        str(world / "own.tiktoken"),
        "--tokens",
        "5",
    ]
    assert main(["sample", *call]) == 0
    assert capsys.readouterr().out.startswith("The\\x1b[31m")


def test_pieces_of_a_text_are_whole_characters_and_make_it(world: Path) -> None:
    own = str(world / "own.tiktoken")
    model = open_text_model(trained(world, "debug"), tokenizer=own)
    num_pieces = 0
    for seed in range(8):
        # So hot that characters are cut and never completed.
        sampling = Sampling(model, "東京", 60, Asked(5.0, 1.0, seed))
        pieces = list(sampling)
        num_pieces += len(pieces)
        assert sampling.result is not None
        assert "".join(pieces) == sampling.result.text
    assert num_pieces > 8 * 10


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (["", "--tokens", "3"], "the prompt is empty: expected a text that the model continues"),
        (["x" * 999], "the prompt has 999 tokens: expected 1 to 127"),
        (["a", "--temperature", "-1"], "--temperature -1.0: expected 0"),
        (["a", "--top-p", "1.5"], "--top-p 1.5: expected a share above 0, at most 1"),
        (["a", "--device", "tpu9"], "--device tpu9:"),
        (["a", "--step", "7"], "--step 7:"),
    ],
)
def test_a_wrong_call_is_told_in_a_sentence(
    world: Path, call: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = trained(world, "debug")
    assert main(["sample", place, *call, "--tokenizer", str(world / "own.tiktoken")]) == 2
    assert says in capsys.readouterr().err


def test_ctrl_c_ends_a_sample_and_leaves_what_was_printed(world: Path) -> None:
    # Temperature so high that no text ends soon, and prompts enough for minutes.
    call = [trained(world, "debug"), *["The gulls"] * 5000, "--tokenizer", str(world / "own.tiktoken")]
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice", "sample", *call, "--temperature", "5"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(9) == "The gulls"
    process.send_signal(signal.SIGINT)
    rest, told = process.stdout.read(), process.stderr.read()
    assert process.wait(60) == 130
    assert rest.endswith("\n") and "Traceback" not in told


def test_checkpoints_are_sampled_as_they_appear_beside_a_training(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = world / "followed"
    changes = {"steps": 6, "seq_len": 32, "checkpoint": {"every": 2, "keep": 9}, "record_batches": False}
    run = Run(data=str(world / "out"), output=output, changes=changes)
    call = ["sample", str(output), "The", "nets", "--tokenizer", str(world / "own.tiktoken"), "--tokens", "3"]
    assert main([*call, "--every", "2"]) == 2
    assert "is not the output of a training run that has begun" in capsys.readouterr().err
    thread = threading.Thread(target=run.start)
    thread.start()
    while not attempts(Folder(str(output))):
        time.sleep(0.01)
    assert main([*call, "--every", "2"]) == 0
    thread.join()
    lines = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    asked = [(line["step"], line["prompt"]) for line in lines]
    assert asked == [(step, prompt) for step in (2, 4, 6) for prompt in ("The", "nets")]
    capsys.readouterr()
    (again,) = sampled(capsys, str(output), "nets", *call[4:], "--step", "4")["samples"]
    assert again["text"] == lines[3]["text"] and len(again["tokens"]) == 3
    assert main([*call, "--every", "2"]) == 0
    assert capsys.readouterr().out == "", "what the file has is not made again"
    assert main([*call[:-1], "4", "--every", "6"]) == 0
    more = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()][6:]
    assert [(line["step"], line["num_tokens"]) for line in more] == [(6, 4), (6, 4)], (
        "longer texts are asked for"
    )
    assert main([*call, "--every", "2", "--step", "4"]) == main([*call, "--every", "0"]) == 2


def test_the_library_samples_too(world: Path) -> None:
    found = sluice.sample(trained(world, "debug"), "The", tokens=4, tokenizer=str(world / "own.tiktoken"))
    assert len(found.tokens) == 4 and found.prompt == "The"
