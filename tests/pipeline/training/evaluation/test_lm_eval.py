"""Scores equal to those of lm-eval on the same exported folder.

lm-eval is no dependency: the test runs where it is installed, or in the folder that LM_EVAL names (`pip install
--target DIR lm-eval==0.4.13`)."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from pipeline.export.checkpoint import export_checkpoint
from pipeline.training.evaluation.formats import read_evaluation
from pipeline.training.evaluation.prepare import EvaluationSet, prepare
from pipeline.training.opened import open_text_model
from tests.support.training.scored_world import make_out, questions, text, write_rows
from tests.support.training.training_runs import Run
from trainer.evaluation.scores import score
from trainer.huggingface.evaluated import evaluated

MODELS = {"llama": "debug", "qwen3": "qwen3-debug", "gemma3_text": "gemma3-debug"}
SEQ_LEN = 128
SHOTS = 2
_LM_EVAL = """
import json, sys
folder, model, shots = sys.argv[1:4]
sys.path.extend(sys.argv[4:])
import lm_eval
from lm_eval.tasks import TaskManager

common = {"dataset_path": "json", "test_split": "test", "metadata": {"version": 1}}
def data(name):
    return {"dataset_kwargs": {"data_files": {"test": f"{folder}/{name}.jsonl"}}}
choices = {**common, **data("choices"), "output_type": "multiple_choice", "doc_to_text": "{{question}}",
           "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}",
           "metric_list": [{"metric": name} for name in ("acc", "acc_norm", "acc_bytes")]}
tasks = [
    {**common, **data("texts"), "task": "texts", "output_type": "loglikelihood_rolling", "doc_to_text": "",
     "doc_to_target": "{{text}}", "metric_list": [{"metric": "bits_per_byte"}]},
    {**choices, "task": "choices", "num_fewshot": 0},
    {**choices, "task": "shots", "num_fewshot": int(shots), "fewshot_split": "test",
     "fewshot_config": {"sampler": "first_n"}},
]
found = lm_eval.simple_evaluate(model="hf", model_args={"pretrained": model, "dtype": "float32"}, tasks=tasks,
                                device="cpu", batch_size=4, log_samples=True, bootstrap_iters=0)
def first(nested):
    return first(nested[0]) if isinstance(nested, (list, tuple)) else nested
told = {"results": found["results"], "samples": {
    name: [[first(each) for each in one["resps"]] for one in sorted(rows, key=lambda one: one["doc_id"])]
    for name, rows in found["samples"].items()}}
print("found " + json.dumps(told, default=float))
"""


def lm_eval_folder() -> list[str]:
    """Where lm-eval is to be imported from besides; skips where it is not there."""
    if given := os.environ.get("LM_EVAL"):
        return [given]
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed, and LM_EVAL names no folder that has it")
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, of which some are longer than several rows, and questions; exports of short runs."""
    folder = tmp_path_factory.mktemp("beside")
    rng = random.Random(5)
    out = make_out(folder, [text(rng, 120) for _ in range(40)])
    lengths = [1, 3, 20, 24, 25, 60, 200, *(rng.randint(5, 90) for _ in range(12))]
    write_rows(folder / "texts.jsonl", [{"text": text(rng, length)} for length in lengths])
    write_rows(folder / "choices.jsonl", questions(rng, 30, 5))
    for name, model in MODELS.items():
        changes = {
            "model": model, "seq_len": SEQ_LEN, "global_batch": 4, "steps": 30, "dtype": "float32",
            "optimizer": {"lr": 1e-2, "warmup_steps": 3}, "checkpoint": {"every": 30},
        }  # fmt: skip
        run = Run(data=out, output=folder / f"run-{name}", changes=changes)
        run.start()
        export_checkpoint(Folder(str(run.output)), str(folder / name), tokenizer=str(folder / "own.tiktoken"))
    return folder


@pytest.mark.differential("pipeline/training/evaluation", "trainer/evaluation", "trainer/huggingface")
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_lm_eval(name: str, folder: Path) -> None:
    beside = lm_eval_folder()
    call = [sys.executable, "-c", _LM_EVAL, str(folder), str(folder / name), str(SHOTS), *beside]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(call, capture_output=True, text=True, check=False, env={**os.environ, **offline})
    assert done.returncode == 0, done.stderr
    theirs: dict[str, Any] = json.loads(done.stdout.rpartition("found ")[2])
    model = open_text_model(str(folder / name), dtype="float32")
    assert model.opened.seq_len == SEQ_LEN
    for task, file, shots in (("texts", "texts", 0), ("choices", "choices", 0), ("shots", "choices", SHOTS)):
        asked = EvaluationSet(name=task, files=(str(folder / f"{file}.jsonl"),), shots=shots)
        prepared = prepare(asked, read_evaluation(asked.files), model.text, SEQ_LEN)
        nats = evaluated(model.opened, prepared)
        ours, result = score(prepared, nats), theirs["results"][task]
        if task == "texts":
            assert ours.bits_per_byte == pytest.approx(result["bits_per_byte,none"], abs=1e-6)
            continue
        for own, samples in zip(nats, theirs["samples"][task], strict=True):
            assert [-each for each in own] == pytest.approx(samples, abs=1e-4)
        assert (ours.accuracy, ours.accuracy_norm) == (result["acc,none"], result["acc_bytes,none"])
