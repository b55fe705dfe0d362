"""What a call says and finds out before Ray starts: wrong names, taken names, recipes of the other kind."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from lineage.index.output_index import TokenizerIdentity
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.commands import parse_command
from pipeline.cli.main import is_compiled, main
from pipeline.cli.training.train import done_lines
from tests.support.checkout import ROOT
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, write_recipe
from tests.support.outputs.runs import recipe as outputs_of
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.stores.small_disk import small_disk
from trainer.attempts import Attempt, begin, claim
from trainer.checkpoint.store import METADATA, Position, checkpoint_name, publish_complete
from trainer.data.corpus import open_corpus
from trainer.data.recipe_order import plan_of
from trainer.huggingface.model_card import ModelCard, publish_card
from trainer.model.config.sizes import model_config
from trainer.options import DataTable, load_train_recipe
from trainer.planning.counts import num_parameters
from trainer.provenance.facts import FactLog, RunFact, claim_output, commit, run_fact
from trainer.run.preflight import check_recipe

# Run in a process of its own, which says at its end whether Ray or torch was loaded.
CALL = """
import sys
from pipeline.cli.main import main
code = main(sys.argv[1:])
print("loaded:", *sorted({"ray", "torch"} & sys.modules.keys()))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [1700, 530]}).url


def train_recipe(folder: Path, data: str, **changes: object) -> Path:
    table = {"data": data, "output": str(folder / "run"), "model": "debug", "seq_len": 64, "global_batch": 2}
    path = folder / "train.toml"
    plain = {"run": {"name": "mine"}, "train": {**table, "steps": 4, "workers": 1, **changes}}
    path.write_text(tomli_w.dumps(plain))
    return path


def answer(*words: str) -> tuple[int, str, str]:
    """The exit code, what was said on stderr, and the loaded modules."""
    ended = subprocess.run(
        [sys.executable, "-c", CALL, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return ended.returncode, ended.stderr, ended.stdout.splitlines()[-1]


def test_a_wrong_model_name_is_found_before_torch_and_ray_are_loaded(corpus: str, tmp_path: Path) -> None:
    code, told, loaded = answer("train", str(train_recipe(tmp_path, corpus, model="debgu")))
    assert (code, loaded) == (2, "loaded:")
    assert "did you mean 'debug'" in told


def test_a_taken_run_name_is_found_before_torch_and_ray_are_loaded(tmp_path: Path) -> None:
    data = make_corpus(str(tmp_path / "out"), {"web": [500]}).url
    corpus = open_corpus([DataTable(out=data)])
    other = Folder(str(tmp_path / "other"))
    log = FactLog(other, claim(other))
    fact = RunFact(
        run="mine",
        output=other.url,
        plan_fingerprint="0" * 32,
        order_version=1,
        seed=0,
        seq_len=64,
        global_batch=2,
        plan="{}",
    )
    log.add(fact)
    assert commit(log, corpus.outputs)
    code, told, loaded = answer("train", str(train_recipe(tmp_path, data)))
    assert (code, loaded) == (2, "loaded:")
    assert "run.name" in told
    assert "another run.name" in told


def test_without_ray_one_worker_trains_in_the_process_of_the_call(tmp_path: Path) -> None:
    data = make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url
    call = ["train", str(train_recipe(tmp_path, data)), "--set", "ray.address=none"]
    code, told, loaded = answer(*call)
    assert (code, loaded) == (0, "loaded: torch"), told
    assert "step 3" in told and "Traceback" not in told
    assert (tmp_path / "run" / "attempts" / "00001.ended").exists()


def test_without_ray_several_workers_are_refused_with_the_calls_that_start_them(
    corpus: str, tmp_path: Path
) -> None:
    code, told, loaded = answer(
        "train", str(train_recipe(tmp_path, corpus, workers=2)), "--set", "ray.address=none"
    )
    assert (code, loaded) == (2, "loaded:")
    assert "torchrun --nproc-per-node=2 -m trainer" in told and "in_place" in told
    assert not (tmp_path / "run").exists()


def test_an_output_of_another_run_is_found_before_torch_and_ray_are_loaded(
    corpus: str, tmp_path: Path
) -> None:
    claim_output("theirs", Folder(str(tmp_path / "run")))
    code, told, loaded = answer("train", str(train_recipe(tmp_path, corpus)))
    assert (code, loaded) == (2, "loaded:")
    assert f"run.name = 'mine': train.output = '{tmp_path}/run' holds the run 'theirs'" in told
    assert "Done" not in told


def test_a_field_that_no_row_has_is_named_before_ray_is_loaded_and_leaves_no_output(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"body": "a"}\n')
    plain = outputs_of(str(tmp_path / "out"), {"posts": (str(tmp_path / "*.jsonl"),)}, ray=ON_RAY)
    code, told, loaded = answer("run", str(write_recipe(tmp_path / "r.toml", plain)))
    assert (code, loaded) == (2, "loaded:")
    assert (
        f"sluice run: source 'posts': {tmp_path}/a.jsonl: there is no field 'text', only body: name" in told
    )
    assert not (tmp_path / "out").exists()


def test_a_column_that_a_parquet_file_lacks_is_named_before_ray_is_loaded_and_leaves_no_output(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"body": ["some words"]}), tmp_path / "a.parquet")
    plain = outputs_of(str(tmp_path / "out"), {"posts": (str(tmp_path / "*.parquet"),)}, ray=ON_RAY)
    code, told, loaded = answer("run", str(write_recipe(tmp_path / "r.toml", plain)))
    assert (code, loaded) == (2, "loaded:")
    assert "a.parquet: there is no column 'text', only body: name the right one as source.text_field" in told
    assert not (tmp_path / "out").exists()


def test_more_workers_than_there_are_processors_are_refused_before_torch_and_ray_are_loaded(
    corpus: str, tmp_path: Path
) -> None:
    there = os.cpu_count() or 1
    code, told, loaded = answer("train", str(train_recipe(tmp_path, corpus, workers=16 * there)))
    assert (code, loaded) == (2, "loaded:")
    assert "sluice train: train.workers" in told and f"this machine has {there}" in told


def with_checkpoint(path: Path, step: int) -> None:
    """The recipe's run as a start leaves it that has saved a checkpoint of `step` steps."""
    recipe = load_train_recipe(path)
    corpus, output = open_corpus(recipe.train.outs), Folder(recipe.train.output)
    plan, number = plan_of(recipe, corpus), claim(output)
    begin(output, Attempt(number=number, first_step=0, parent=None, began_at=0.0))
    FactLog(output, number).add(run_fact(recipe.run.name, output, plan))
    position = Position(
        step=step,
        attempt=number,
        plan_fingerprint=plan.fingerprint(step * plan.global_batch),
        order_version=1,
        model=model_config(recipe.train.model, corpus.tokenizer.vocab_size),
    )
    folder = output.folder(f"checkpoints/{checkpoint_name(step, number)}")
    folder.publish(METADATA, b"")
    publish_complete(folder, position)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seq_len": 128}, "train.seq_len is 128 now and was 64. "),
        ({"seed": 7}, "train.seed is 7 now and was 0. "),
        (
            {"global_batch": 4, "seq_len": 32},
            "train.seq_len is 32 now and was 64; train.global_batch is 4 now and was",
        ),
        ({"validation": 0.25}, "train.validation is 0.25 now and was "),
    ],
)
def test_a_changed_order_is_refused_by_its_key_before_torch_and_ray_are_loaded(
    corpus: str, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    with_checkpoint(train_recipe(tmp_path, corpus), 2)
    code, told, loaded = answer("train", str(train_recipe(tmp_path, corpus, **changes)))
    assert (code, loaded) == (2, "loaded:")
    assert f"sluice train: {says}" in told
    assert f"{tmp_path}/run has a checkpoint of 2 steps made so" in told


def test_other_data_is_refused_by_source_before_torch_and_ray_are_loaded(corpus: str, tmp_path: Path) -> None:
    with_checkpoint(train_recipe(tmp_path, corpus), 2)
    other = make_corpus(str(tmp_path / "other"), {"web": [1700]}).url
    code, told, loaded = answer("train", str(train_recipe(tmp_path, other)))
    assert (code, loaded) == (2, "loaded:")
    assert "train.data: source web has 1,700 tokens in 1 shards now and had 2,230 tokens in 2 shards" in told


def test_a_checkout_that_is_not_compiled_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(_: Any) -> int:
        raise ModuleNotFoundError(
            "No module named 'stages.html.markup_bounds'", name="stages.html.markup_bounds"
        )

    monkeypatch.setattr("pipeline.cli.corpus.run.run", missing)
    assert main(["run", "recipe.toml"]) == 2
    assert "stages.html.markup_bounds is not compiled: run `make` in" in capsys.readouterr().err
    assert not is_compiled("stages.chain") and not is_compiled("nowhere.at_all") and not is_compiled(None)


def test_the_lineage_page_loads_neither_scipy_nor_torch_nor_ray() -> None:
    look = "import sys, pipeline.page.serve; print(*sorted({'scipy', 'torch', 'ray'} & sys.modules.keys()))"
    ended = subprocess.run(
        [sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert ended.stdout.split() == []


def test_a_finished_training_says_so_without_torch_and_ray(tmp_path: Path) -> None:
    path = train_recipe(tmp_path, make_corpus(str(tmp_path / "out"), {"web": [1700, 530]}).url)
    with_checkpoint(path, 4)
    code, told, loaded = answer("train", str(path))
    assert (code, loaded) == (0, "loaded:"), told
    assert "the workers start" not in told
    rows = query(Folder(str(tmp_path / "out")), "SELECT run, seq_len FROM training_runs").rows
    assert list(rows) == [("mine", 64)], "a store that was down has the facts now"
    code, told, loaded = answer("train", str(path), "--set", "train.model=8B")
    assert (code, loaded) == (2, "loaded:")


def test_a_disk_without_room_for_a_checkpoint_is_told_before_torch_and_ray_are_loaded(
    corpus: str, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 100) as disk:
        code, told, loaded = answer("train", str(train_recipe(tmp_path, corpus, output=str(disk / "run"))))
    assert (code, loaded) == (1, "loaded:")
    config = model_config("debug", open_corpus([DataTable(out=corpus)]).tokenizer.vocab_size)
    assert (
        f"102,400 bytes free, and a checkpoint of this model needs {12 * num_parameters(config):,}: free some"
        in told
    )


def test_an_export_of_what_is_no_training_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    code, told, loaded = answer("export", str(tmp_path / "nothing"), "--to", str(tmp_path / "to"))
    assert (code, loaded) == (2, "loaded:")
    assert "holds neither index.json" in told
    card = ModelCard(
        config=model_config("debug", 256),
        seq_len=64,
        dtype="float32",
        tokenizer=TokenizerIdentity(name="none", hash="0" * 32, vocab_size=256, eot_id=0),
        checkpoints=str(tmp_path / "run/checkpoints"),
    )
    publish_card(Folder(str(tmp_path / "run")), card)
    code, told, loaded = answer("export", str(tmp_path / "run"), "--to", str(tmp_path / "to"))
    assert (code, loaded) == (2, "loaded:")
    assert "has no complete checkpoint yet" in told


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        ("certify {} --to cert.json", 2, "sluice certify: {} is not the output of a training run"),
        ("certify --check {}/cert.json {}", 2, "sluice certify: {} is not the output of a training run"),
        ("train why {} --step 1", 2, "sluice train why: {} is not the output of a training run"),
        ("train goodput {}", 1, "sluice train goodput: {} holds no attempt whose beginning is known"),
        ("train diagnose {}", 1, "sluice train diagnose: {} holds no recorder"),
        ("train profile {}", 1, "sluice train profile: {} holds no trace"),
    ],
)
def test_what_is_no_training_is_told_before_torch_is_loaded(
    tmp_path: Path, call: str, code: int, says: str
) -> None:
    path = str(tmp_path / "nothing")
    ended, told, loaded = answer(*call.format(path, path).split())
    assert (ended, loaded) == (code, "loaded:")
    assert says.format(path) in told


@pytest.mark.parametrize("lost", [".bin", ".blocks"])
def test_a_training_on_a_missing_shard_fails_at_once_and_names_verify(tmp_path: Path, lost: str) -> None:
    out = make_corpus(str(tmp_path / "out"), {"web": [500, 500, 500]})
    out.remove(f"shards/web/00001{lost}")
    code, told, loaded = answer("train", str(train_recipe(tmp_path, out.url)))
    assert (code, loaded) == (1, "loaded:")
    assert f"lacks shards/web/00001{lost}: sluice verify {out.url}" in told


def test_a_finished_training_says_what_it_came_to_and_what_to_try(tmp_path: Path, corpus: str) -> None:
    from trainer.processes.result import TrainingResult

    recipe = load_train_recipe(train_recipe(tmp_path, corpus))
    result = TrainingResult(step=1200, attempt=0, loss=3.14159265, finished=True, checkpoint="step-1200")
    told = done_lines(recipe, result)
    assert "1,200 steps of 2 sequences of 64 tokens (153,600 in all), loss 3.1416." in told
    calls = [
        line.strip().removeprefix("sluice ")
        for line in told.partition("Next:")[2].splitlines()
        if line.strip()
    ]
    assert [parse_command(call.split()[0], shlex.split(call)[1:]) for call in calls]
    assert calls[0] == f"trace {corpus} --run mine --step 1199"


def test_a_wrong_step_or_threshold_is_found_before_ray_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "data.toml"
    path.write_text(
        f'[run]\nname = "a"\noutput = "{tmp_path}/out"\n'
        '[[source]]\nname = "web"\ninputs = ["*.warc"]\nsteps = ["prase"]\n'
    )
    code, told, loaded = answer("run", str(path))
    assert (code, loaded) == (2, "loaded:")
    assert told.index("checking the recipe") < told.index("unknown step 'prase'")


@pytest.mark.parametrize(("command", "file", "words"), [
    ("train", "crawl.toml", ("is a data recipe", "sluice run")),
    ("run", "train.toml", ("is a training recipe", "sluice train")),
])  # fmt: skip
def test_a_recipe_of_the_other_kind_is_named_in_one_sentence(
    command: str, file: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    call = [
        command,
        str(ROOT / "recipes" / file),
        "--set",
        "train.data=out" if command != "run" else "run.seed=1",
    ]
    assert main(call) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert not [word for word in words if word not in told]


def test_the_trainer_by_itself_names_a_data_recipe_too() -> None:
    from trainer.command import main as train

    assert train([str(ROOT / "recipes" / "crawl.toml")]) == 2


def test_a_wrong_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verfiy", "out"]) == 2
    assert "did you mean `sluice verify`?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    name, version = capsys.readouterr().out.split()
    assert name == "sluice"
    assert version[0].isdigit()


def test_thousands_of_epochs_are_warned_of(corpus: str, tmp_path: Path) -> None:
    few = check_recipe(load_train_recipe(train_recipe(tmp_path, corpus)))
    assert not [line for line in few if "warning" in line]
    assert "epochs in 4 steps" in few[0]
    many = check_recipe(load_train_recipe(train_recipe(tmp_path, corpus, steps=200_000)))
    (warning,) = [line for line in many if "warning" in line]
    assert "is read 11," in warning


def test_workers_beyond_the_processors_are_warned_of_or_refused(corpus: str, tmp_path: Path) -> None:
    there = os.cpu_count() or 1
    twice = check_recipe(load_train_recipe(train_recipe(tmp_path, corpus, workers=2 * there)))
    assert [line for line in twice if "take turns" in line]
    path = train_recipe(tmp_path, corpus, workers=16 * there)
    with pytest.raises(RecipeError, match=f"this machine has {there}"):
        check_recipe(load_train_recipe(path))
    insisted = load_train_recipe(path, [f"ray.num_cpus={16 * there}"])
    assert not [line for line in check_recipe(insisted) if "turns" in line]


def test_weights_to_begin_from_that_are_not_there_are_told_before_ray_starts(
    corpus: str, tmp_path: Path
) -> None:
    path = train_recipe(tmp_path, corpus)
    absent = load_train_recipe(path, [f'train.init_from="{tmp_path}/step-00000200.attempt-1"'])
    with pytest.raises(
        RecipeError, match=r"step-00000200.attempt-1': expected a checkpoint \(with complete\.json\)"
    ):
        check_recipe(absent)
    begin(Folder(absent.train.output), Attempt(number=1, first_step=0, parent=None, began_at=0.0))
    assert check_recipe(absent), "a run that has begun needs them no more"
