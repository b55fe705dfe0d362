"""What `sluice mix` refuses, and what it says: exit 2 for a wrong call or recipe, 1 for what is not there
yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.measured_ablation import finished, write_recipe
from trainer.mix.proxies import write_design

FIT = ["fit", "--target", "web", "--model", "log_linear"]
SIZES = {"books": [30_000], "code": [20_000], "web": [50_000]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), SIZES).url


@pytest.fixture(scope="module")
def done(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_recipe(corpus, tmp_path_factory.mktemp("done"))
    finished(path)
    return str(path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["fit", "--target", "blogs", "--model", "log_linear"], "no run has this target; expected one of books, code"),
        (["fit", "--target", "o", "--model", "log_linear"], "2 targets have this in their names"),
        (["fit", "--target", "web", "--model", "forest"], "expected one of stratified, natural, best, least_squares"),
        (["fit", "--target", "web", "--model", "lightgbm"], "at least 100 runs for 3 sources, there are 16"),
        ([*FIT, "--test-weights", "nowhere.csv"], "--test-weights and --test-losses belong together"),
        ([*FIT, "--test-weights", "nowhere.csv", "--test-losses", "nowhere.csv"], "nowhere.csv cannot be read as CSV"),
        ([*FIT, "--weights", "nowhere.csv"], "either a RECIPE or --weights and --losses"),
        (["optimize", "--model", "lightgbm"], "lightgbm needs at least 100 runs"),
        (["optimize", "--model", "natural"], "it is a baseline"),
        (["report", "--model", "best"], "it is a baseline"),
        (["report", "--model", "forest"], "expected one of stratified"),
        (["report", "--set", "mix.targets.blogs=1.0"], "train.data has no such source, only books, code, web"),
        (["run", "--parallel", "0"], "--parallel 0: expected at least 1"),
        (["run", "--set", "mix.runs=17"], "of another design"),
        (["design", "--set", "mix.proxy.tokens=32", "--set", "train.global_batch=1"], "1 sequence is too short for 3"),
        (["doremi", "--set", "mix.doremi.smoothing=1.5"], "expected at most 1"),
        (["optimize", "--set", "mix.budget_tokens=100000000000"], "4 epochs under 100,000,000,000 tokens"),
    ],
)  # fmt: skip
def test_a_wrong_call_on_a_finished_ablation_is_refused(
    done: str, capsys: pytest.CaptureFixture[str], call: list[str], message: str
) -> None:
    action, *options = call
    assert main(["mix", action, done, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"caps": {"blogs": 0.5}}, "mix.caps.blogs: train.data has no such source, only books, code, web"),
        ({"caps": {"web": 0.3, "books": 0.3, "code": 0.3}}, "no shares sum to 1"),
        ({"floors": {"web": 0.7, "books": 0.7}}, "no shares sum to 1"),
        ({"floors": {"web": -0.1}}, "mix.floors.web = -0.1: expected at least 0"),
        ({"runs": 4}, "mix.runs = 4: expected at least 5 for 3 sources"),
        ({"targets": {"web": 0.0}}, "every weight is 0"),
        ({"proxy": {"model": "tiny"}}, "mix.proxy.model: train.model = 'tiny'"),
        ({"proxy": {"tokens": 0}}, "mix.proxy.tokens = 0: expected at least 1"),
    ],
)
def test_a_recipe_that_cannot_be_ablated_is_refused(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], mix: dict[str, Any], message: str
) -> None:
    assert main(["mix", "design", str(write_recipe(corpus, tmp_path, **mix))]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "mix").exists()


@pytest.mark.parametrize(
    "call", [["fit", "--target", "web", "--model", "log_linear"], ["optimize"], ["report"]]
)
def test_an_ablation_with_runs_to_do_says_how_many(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], call: list[str]
) -> None:
    path = write_recipe(corpus, tmp_path)
    ablation = finished(path)
    ablation.folder.remove(f"results/{ablation.points[3].name}.json")
    assert main(["mix", call[0], str(path), *call[1:]]) == 1
    assert "1 of 24 runs are not done: call `sluice mix run` first" in capsys.readouterr().err


def test_data_that_changed_since_the_design_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_recipe(make_corpus(str(tmp_path / "out"), SIZES).url, tmp_path)
    write_design(finished(path))
    make_corpus(str(tmp_path / "other"), SIZES | {"web": [60_000]})
    assert main(["mix", "run", str(path), "--set", f"train.data={tmp_path / 'other'}"]) == 2
    assert "train.data holds other tokens than it did" in capsys.readouterr().err
