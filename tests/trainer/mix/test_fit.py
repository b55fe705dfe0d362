"""Models of the loss of a mixture: on the published RegMix table, on laws made up here, and on bad tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lineage.recipe import RecipeError
from pipeline.cli.main import main
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.measured_ablation import finished, write_recipe
from tests.support.training.measured_ablation import law as law_of
from trainer.mix.fit import Judgement, judge, left_out, score
from trainer.mix.models import MODELS, LogLinear, fit_log_linear, fit_quadratic, fitter
from trainer.mix.swarm import Swarm, read_swarm

TARGET = "metric/the_pile_pile_cc_val_loss"


@pytest.fixture(scope="module")
def regmix(real_data: Path) -> tuple[Swarm, Swarm]:
    folder = real_data / "regmix"
    if not folder.is_dir():
        pytest.skip("no RegMix table")
    train, test = (
        read_swarm(str(folder / f"{part}_mixture_1m.csv"), str(folder / f"{part}_pile_loss_1m.csv"))
        for part in ("train", "test")
    )
    return train, test


def first(swarm: Swarm, num: int) -> Swarm:
    return replace(swarm, weights=swarm.weights[:num], losses=swarm.losses[:num])


def law(num_runs: int, noise: float = 0.0) -> Swarm:
    """Runs of three sources whose two losses follow the mixing law."""
    rng = np.random.default_rng(5)
    weights = rng.dirichlet(np.ones(3), num_runs)
    exponents = np.array([[0.2, 1.1, 0.9], [1.4, 0.1, 0.8]])
    losses = 2.0 + np.exp(weights @ exponents.T) + rng.normal(0, noise, (num_runs, 2))
    return Swarm(sources=("web", "books", "code"), targets=("web", "books"), weights=weights, losses=losses)


@pytest.mark.parametrize(
    ("model", "num_runs", "spearman"),
    [
        ("lightgbm", 512, 0.9904),
        ("least_squares", 512, 0.9021),
        ("log_linear", 512, 0.9625),
        ("log_linear", 64, 0.945),
        ("lightgbm", 64, 0.865),
    ],
)
def test_models_rank_the_regmix_mixtures_as_well_as_published(
    regmix: tuple[Swarm, Swarm], model: str, num_runs: int, spearman: float
) -> None:
    train, test = regmix
    fit = judge(first(train, num_runs), test, Judgement(target=TARGET, model=model, force=True))
    assert fit.score.spearman == pytest.approx(spearman, abs=0.01)
    assert fit.score.interval is not None
    assert fit.score.interval[0] < spearman < fit.score.interval[1]
    assert fit.baselines["own_share"].spearman == pytest.approx(0.8167, abs=0.001)
    assert fit.baselines["mean"].spearman is None


def test_a_law_without_noise_is_found_exactly() -> None:
    swarm = law(12)
    model = fit_log_linear(swarm.weights, swarm.losses[:, 0])
    assert isinstance(model, LogLinear)
    fresh = np.random.default_rng(6).dirichlet(np.ones(3), 50)
    assert model.predict(fresh) == pytest.approx(2.0 + np.exp(fresh @ [0.2, 1.1, 0.9]), abs=1e-3)


def test_a_quadratic_finds_a_product_of_shares() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(3), 40)
    losses = 3.0 - weights[:, 0] * weights[:, 1]
    assert fit_quadratic(weights, losses).predict(weights) == pytest.approx(losses, abs=0.02)


def test_a_run_does_not_take_part_in_its_own_prediction() -> None:
    swarm = law(12)
    moved = swarm.losses[:, 0].copy()
    moved[3] += 5.0
    before = left_out(MODELS["least_squares"], swarm.weights, swarm.losses[:, 0])
    after = left_out(MODELS["least_squares"], swarm.weights, moved)
    assert after[3] == before[3]
    assert not np.allclose(after, before)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "lightgbm"])
def test_every_model_scores_on_left_out_runs_the_same_each_time(model: str) -> None:
    asked = Judgement(target="books", model=model)
    fit = judge(law(24, noise=0.01), None, asked)
    assert fit == judge(law(24, noise=0.01), None, asked)
    assert fit.held_out == "folds"
    assert fit.score.mae < (0.05 if model in ("log_linear", "quadratic", "gaussian_process") else 1.0)


def test_a_perfect_prediction_scores_one_and_a_constant_scores_nothing() -> None:
    measured = np.array([1.0, 2.0, 4.0, 3.0])
    perfect = score(measured, measured)
    assert (perfect.spearman, perfect.mae) == (1.0, 0.0)
    assert score(np.full(4, 2.5), measured).spearman is None


@pytest.mark.parametrize(
    ("model", "num_runs", "message"),
    [
        ("lightgbm", 99, "at least 100 runs"),
        ("quadratic", 15, "at least 16 runs for 5 sources"),
        ("log_linear", 6, "at least 7 runs"),
        ("least_squares", 5, "at least 6 runs"),
        ("forest", 500, "expected one of stratified, natural"),
    ],
)
def test_too_few_runs_for_a_model_are_refused(model: str, num_runs: int, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        fitter(model, num_runs, 5)


class TestTables:
    """CSV files as people publish them."""

    def write(self, folder: Path, name: str, text: str) -> str:
        (folder / name).write_text(text)
        return str(folder / name)

    def fit(self, weights: str, losses: str, *more: str) -> int:
        return main(
            ["mix", "fit", "--weights", weights, "--losses", losses, "--model", "least_squares", *more]
        )

    def test_rows_are_joined_by_index_and_renormalised(self, tmp_path: Path) -> None:
        weights = self.write(tmp_path, "w.csv", "index,a,b\n1,0.5,0.505\n2,1,0\n3,0,1\n")
        losses = self.write(tmp_path, "l.csv", "index,a\n3,30\n1,10\n2,20\n")
        swarm = read_swarm(weights, losses)
        assert swarm.losses[:, 0].tolist() == [10, 20, 30]
        assert swarm.weights.sum(axis=1) == pytest.approx(1.0, abs=1e-12)

    @pytest.mark.parametrize(
        ("tables", "message"),
        [
            (("a,b\n0.5,0.5\n1,0\n0.4,0.4\n", "x\n1\n2\n3\n"), "weights of run 2 sum to 0.8, expected 1"),
            (("a,b\n0.5,0.5\n1.5,-0.5\n", "x\n1\n2\n"), "has the share -0.5"),
            (("a,b\n0.5,0.5\n1,0\n", "x\n1\n2\n3\n"), "2 runs"),
            (("run,a,b\n1,1,0\n1,0,1\n2,1,0\n", "run,x\n1,1\n1,2\n2,3\n"), "w.csv: run 1 is there 2 times"),
            (("run,a,b\n1,1,0\n2,0,1\n", "run,x\n1,1\n2,2\n2,3\n"), "l.csv: run 2 is there 2 times"),
            (("a,b\n0.5,0.5\n1,0\n0,1\n", "y\n1\n2\n3\n"), "no run has this target; expected one of y"),
            (("a,b\n0.5,0.5\n1,0\n0,1\n", "ax,bx\n1,1\n2,2\n3,3\n"), "2 targets have this"),
            (("a,b\n0.5,0.5\n1,zero\n", "x\n1\n2\n"), "expected numbers"),
            (("a,b\n0.5,0.5\n1\n", "x\n1\n2\n"), "line 3: 1 cells, expected 2"),
            (("a,b\n0.5,0.5\n1,0\n", "x\n1\nnan\n"), "not finite"),
        ],
    )
    def test_a_wrong_table_is_refused_with_exit_2(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], tables: tuple[str, str], message: str
    ) -> None:
        paths = self.write(tmp_path, "w.csv", tables[0]), self.write(tmp_path, "l.csv", tables[1])
        assert self.fit(*paths, "--target", "x") == 2
        assert message in capsys.readouterr().err

    def test_half_a_test_set_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        paths = self.write(tmp_path, "w.csv", "a\n1\n"), self.write(tmp_path, "l.csv", "x\n1\n")
        assert self.fit(*paths, "--target", "x", "--test-weights", paths[0]) == 2
        assert "belong together" in capsys.readouterr().err

    def test_json_has_the_score_and_those_of_the_baselines(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rows = law(20)
        weights = "a,b,c\n" + "\n".join(",".join(map(str, row)) for row in rows.weights)
        losses = "a,b\n" + "\n".join(",".join(map(str, row)) for row in rows.losses)
        paths = self.write(tmp_path, "w.csv", weights), self.write(tmp_path, "l.csv", losses)
        assert self.fit(*paths, "--target", "b", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["model"], told["target"], told["num_runs"]) == ("least_squares", "b", 20)
        assert told["interval"][0] <= told["spearman"] <= told["interval"][1]
        assert {"spearman", "mae", "interval"} == set(told["baselines"]["own_share"])


def test_an_ablation_is_scored_on_the_test_files_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"books": [30_000], "code": [20_000], "web": [50_000]}).url
    path = write_recipe(corpus, tmp_path)
    finished(path)
    call = ["mix", "fit", str(path), "--target", "web", "--model", "log_linear", "--json"]
    shares = [{"books": 0.2, "code": 0.3, "web": 0.5}, {"books": 0.6, "code": 0.3, "web": 0.1}]
    (tmp_path / "w.csv").write_text("books,code,web\n0.2,0.3,0.5\n0.6,0.3,0.1\n")
    # Each loss is one nat above the law, which the fitted model knows to .01.
    rows = [
        ",".join(str(law_of(target, share) + 1.0) for target in ("books", "code", "web")) for share in shares
    ]
    (tmp_path / "l.csv").write_text("\n".join(["books,code,web", *rows]))
    files = ["--test-weights", str(tmp_path / "w.csv"), "--test-losses", str(tmp_path / "l.csv")]
    assert main([*call, *files]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["held_out"], told["num_runs"]) == ("test", 16)
    assert told["mae"] == pytest.approx(1.0, abs=0.01)
