"""Training, forgetting and certificates from Python: what the commands do, with and without Ray."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import sluice
from pipeline.cli.main import main
from tests.support.inputs.tiny_crawl import make_tiny_crawl, tiny_tokenizer
from tests.support.outputs.runs import recipe, write_recipe

TRAIN: dict[str, Any] = {
    "data": "out",
    "output": "run",
    "model": "debug",
    "seq_len": 32,
    "global_batch": 4,
    "steps": 12,
    "optimizer": {"lr": 3e-3, "warmup_steps": 2},
    "checkpoint": {"every": 4, "keep": 10},
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the test is in: a small output `out`, and the recipe train.toml over it."""
    sources = make_tiny_crawl(tmp_path)
    tokenizer = tiny_tokenizer(tmp_path)
    sluice.run(
        write_recipe(
            tmp_path / "data.toml", recipe(str(tmp_path / "out"), sources, tokenize={"encoding": tokenizer})
        )
    )
    write_recipe(
        tmp_path / "train.toml", {"run": {"name": "mine"}, "train": TRAIN, "ray": {"address": "none"}}
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def first_read_in(steps: range) -> str:
    """A document that run `mine` first read in one of these steps."""
    output = sluice.open_output("out")
    for doc_id in output.sql("SELECT doc_id FROM documents WHERE status = 'kept' ORDER BY doc_id")["doc_id"]:
        (history,) = output.trace(doc_id=doc_id.as_py())
        if history.exposures and min(exposure.step for exposure in history.exposures) in steps:
            return history.doc_id
    raise AssertionError(f"no document is first read in {steps}")


def test_a_training_is_that_of_the_command_and_shows_its_steps_only_where_asked(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = sluice.train("train.toml", ["train.steps=8"])
    assert (trained.step, trained.finished, trained.output) == (8, True, str(world / "run"))
    assert [each.step for each in trained.checkpoints] == [4, 8]
    assert all((Path(each.folder) / "complete.json").exists() for each in trained.checkpoints)
    assert trained.num_tokens == 8 * 4 * 32
    assert any("epochs in 8 steps" in line for line in trained.lines)
    assert "Training run mine" in trained._repr_html_()
    assert "step " not in capsys.readouterr().err
    assert main(["train", "train.toml", "--set", "train.steps=8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == trained.loss
    on = sluice.train("train.toml", show_progress=True)
    assert (on.step, "step 11/12" in capsys.readouterr().err) == (12, True)
    assert main(["train", "train.toml", "--set", "train.output=other", "--set", "run.name=other"]) == 0
    assert losses(world / "other") != losses(world / "run")[:12], "the schedule of 8 steps is another"
    assert losses(world / "other")[:1] == losses(world / "run")[:1]


def test_what_a_purge_took_is_forgotten_certified_and_checked(world: Path) -> None:
    sluice.train("train.toml")
    purge = sluice.purge("out", docs=[first_read_in(range(5, 8))]).apply(reason="asked", by="me")
    with pytest.raises(sluice.CertificateError, match=f"it read documents of purge {purge.purge_id}"):
        sluice.certify("run")
    replayed = sluice.train("train.toml", forget="all")
    assert (replayed.purges, replayed.step) == ((purge.purge_id,), 12)
    assert any("goes back to checkpoint step-00000004" in line for line in replayed.lines)
    assert replayed.certificate is not None
    assert sluice.check_certificate(replayed.certificate, "run").holds
    again = sluice.train("train.toml", forget=[str(purge.purge_id)])
    assert (again.loss, again.certificate) == (replayed.loss, replayed.certificate)
    assert any("nothing to forget" in line for line in again.lines)
    made = sluice.certify("run", to="cert.json")
    assert [(each.purge_id, each.applied) for each in made.purges] == [(purge.purge_id, 0)]
    assert made.purges[0].readings > 0 and made.file == "cert.json" and Path(str(made.page)).exists()
    assert str(purge.purge_id) in made._repr_html_()
    checked = sluice.check_certificate("cert.json", "run")
    assert checked.holds and "every line holds" in checked._repr_html_()
    certificate = json.loads(Path("cert.json").read_text())
    Path("cert.json").write_text(json.dumps(certificate | {"at": "2000-01-01T00:00:00Z"}))
    changed = sluice.check_certificate("cert.json", "run")
    assert [line.what for line in changed.lines if not line.holds] == ["checksum"]
    assert "it does NOT hold" in changed._repr_html_()
    never = sluice.train("train.toml", ["run.name=never", "train.output=never"])
    assert never.loss == replayed.loss
    assert sluice.compare_runs("run", "never").equal


def test_a_training_goes_back_and_needs_neither_the_main_thread_nor_a_file(world: Path) -> None:
    loaded = sluice.load_train_recipe("train.toml")
    ended: list[sluice.TrainedRun] = []
    thread = threading.Thread(target=lambda: ended.append(sluice.train(loaded)))
    thread.start()
    thread.join()
    (trained,) = ended
    before = losses(world / "run")
    back = sluice.train(loaded, from_step=4)
    assert (back.step, back.loss) == (12, trained.loss)
    assert losses(world / "run")[12:] == before[4:]
    with pytest.raises(ValueError, match="overrides"):
        sluice.train(loaded, ["train.steps=3"])


def test_a_training_on_ray_is_the_one_without(world: Path, small_ray: None) -> None:
    alone = sluice.train("train.toml")
    on_ray = sluice.train(
        "train.toml", ["ray.address=local", "run.name=ray", "train.output=ray", "train.workers=1"]
    )
    assert (on_ray.loss, on_ray.finished) == (alone.loss, True)
    assert losses(world / "ray") == losses(world / "run")


def test_a_wrong_call_is_a_public_error(world: Path) -> None:
    with pytest.raises(sluice.RecipeError, match=r"data\.toml is a data recipe"):
        sluice.train("data.toml")
    with pytest.raises(sluice.RecipeError, match="out is not the output of a training run"):
        sluice.certify("out")
    with pytest.raises(sluice.RecipeError, match=r"under .*out, a finished output"):
        sluice.train("train.toml", ["train.output=out/run"])
    sluice.train("train.toml", ["train.steps=1"])
    with pytest.raises(sluice.RecipeError, match=r"under .*out, a finished output"):
        sluice.certify("run", to="out/cert.json")
    Path("cert.json").write_text("{}")
    with pytest.raises(sluice.CertificateError, match="no certificate"):
        sluice.check_certificate("cert.json", "run")
