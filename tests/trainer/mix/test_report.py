"""The report of an ablation whose law is known: its figures, and the page that shows them."""

from __future__ import annotations

import html.parser
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.cli.main import main
from pipeline.report.charts import Axes, spanning, ticks
from pipeline.report.training.mix import as_plain, render_mix
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.measured_ablation import finished, law, write_recipe
from trainer.data.corpus import open_corpus
from trainer.data.recipe_order import make_order
from trainer.mix.models import least_runs
from trainer.mix.proxies import Ablation
from trainer.mix.report import MixReport, make_report
from trainer.options import MixtureTable


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(
        str(tmp_path_factory.mktemp("out")), {"books": [30_000], "code": [20_000], "web": [50_000]}
    ).url


@pytest.fixture(scope="module")
def ablation(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    return finished(write_recipe(corpus, tmp_path_factory.mktemp("ablation")))


@pytest.fixture(scope="module")
def report(ablation: Ablation) -> MixReport:
    return make_report(ablation, "log_linear")


def goal(weights: dict[str, float]) -> float:
    return float(np.mean([law(target, weights) for target in ("books", "code", "web")]))


class TestFigures:
    """What the page is made of."""

    def test_every_run_stands_beside_a_prediction_that_has_not_seen_it(
        self, ablation: Ablation, report: MixReport
    ) -> None:
        assert sorted(row.name for row in report.rows) == [point.name for point in ablation.points]
        for row in report.rows:
            assert row.measured == pytest.approx(goal(row.weights), abs=0.005)
            assert row.measured != row.predicted
        assert report.scores["log_linear"].spearman is not None
        assert report.scores["log_linear"].spearman > 0.9
        assert report.scores["log_linear"].mae < report.scores["mean"].mae
        assert {"stratified", "natural", "best", "least_squares", "quadratic"} <= set(report.scores)

    def test_a_response_is_the_law_along_its_source(self, report: MixReport) -> None:
        chosen = report.choice.weights
        for response in report.responses:
            others = 1.0 - chosen[response.source]
            for share, loss, low, high in zip(
                response.shares, response.losses, response.low, response.high, strict=True
            ):
                mixture = {name: own * (1.0 - share) / others for name, own in chosen.items()}
                assert loss == pytest.approx(goal(mixture | {response.source: share}), abs=0.01)
                assert low <= high
            at_choice = np.interp(response.chosen, response.shares, response.losses)
            assert at_choice == pytest.approx(report.choice.predicted, abs=1e-3)

    def test_fewer_runs_are_those_that_a_shorter_design_has(
        self, corpus: str, ablation: Ablation, report: MixReport, tmp_path: Path
    ) -> None:
        assert min(less.num_runs for less in report.cheaper) == least_runs("log_linear", 3)
        less = report.cheaper[-1]
        short = finished(write_recipe(corpus, tmp_path, runs=less.num_runs))
        own = [point.weights for point in short.points if point.role not in ("replicate", "held_out")]
        assert own == [point.weights for point in ablation.points[: less.num_runs]]
        assert all(less.worse >= 0.0 for less in report.cheaper)

    def test_noise_floor_and_cost_are_sums_over_all_runs(self, ablation: Ablation, report: MixReport) -> None:
        assert report.noise_floor is not None and 0.0 < report.noise_floor < 0.005
        num = len(ablation.points)
        assert (report.cost.num_runs, report.cost.tokens, report.cost.seconds) == (
            num,
            num * ablation.tokens,
            num * 2,
        )
        assert report.cost.flops == ablation.flops_per_token * report.cost.tokens

    def test_epochs_are_those_that_a_run_of_the_recommended_mixture_tells(
        self, corpus: str, ablation: Ablation, report: MixReport
    ) -> None:
        train = ablation.recipe.train
        mixture = (MixtureTable(weights=report.choice.weights),)
        order = make_order(
            replace(ablation.recipe, train=replace(train, mixture=mixture)), open_corpus(train.outs)
        )
        blocks = 5  # after whole ones the shares are exact
        told = order.epochs(blocks * train.order.mixture_block)
        share = blocks * train.order.mixture_block / (train.steps * train.global_batch)
        assert {source: epochs * share for source, epochs in report.choice.epochs.items()} == pytest.approx(
            told
        )


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


class TestPage:
    """One file without a script or an address to fetch from."""

    def test_it_is_well_formed_escaped_and_needs_no_network(self, report: MixReport) -> None:
        text = render_mix(report)
        page = _Page()
        page.feed(text)
        assert page.open == []
        assert "script" not in page.tags and "img" not in page.tags
        assert not re.search(r"https?://|url\(", text)
        assert "measured &lt;b&gt;" in text and "<b>measured" not in text
        assert page.tags.count("circle") == 4 * len(report.fits[0].measured)
        assert text.count('class="band"') == 3

    def test_the_command_writes_it_and_tells_its_figures(
        self, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write_recipe(corpus, tmp_path)
        ablation = finished(path)
        assert main(["mix", "report", str(path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["file"] == ablation.folder.at("report.html")
        assert told["choice"]["weights"] == make_report(ablation, "log_linear").choice.weights
        assert main(["mix", "report", str(path), "--model", "quadratic"]) == 0
        assert "By the model quadratic" in Path(capsys.readouterr().out.strip()).read_text()

    @pytest.mark.parametrize(
        "mix",
        [
            {"replicates": 0, "held_out": 0},
            {"caps": {"code": 0.0}, "targets": {"code": 1.0}},
            {"floors": {"web": 0.3, "books": 0.3, "code": 0.3}, "runs": 7, "held_out": 1},
        ],
    )
    def test_every_kind_of_recipe_has_a_page(
        self, corpus: str, tmp_path: Path, mix: dict[str, object]
    ) -> None:
        report = make_report(finished(write_recipe(corpus, tmp_path, **mix)), "least_squares")
        page = _Page()
        page.feed(render_mix(report))
        assert page.open == []
        assert "nan" not in json.dumps(as_plain(report)).lower()

    def test_a_gain_within_the_noise_is_called_no_reason_to_change(self, corpus: str, tmp_path: Path) -> None:
        noisy = make_report(finished(write_recipe(corpus, tmp_path), noise=0.5), "least_squares")
        assert "no reason to change" in render_mix(noisy)
        assert as_plain(noisy)["verdict"] == "within_noise"

    def test_optimize_begins_with_the_verdict_and_a_block_that_is_no_better_changes_nothing_when_pasted(
        self, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, noise, verdict in (("quiet", 0.0005, "better"), ("noisy", 0.5, "within_noise")):
            folder = tmp_path / name
            folder.mkdir()
            path = write_recipe(corpus, folder)
            finished(path, noise=noise)
            assert main(["mix", "optimize", str(path)]) == 0
            told = capsys.readouterr().out
            assert told.startswith("# The gain over the natural")
            assert ("no reason to change" in told.splitlines()[0]) == (verdict == "within_noise")
            assert ("mixture" in tomllib.loads(told).get("train", {})) == (verdict == "better")
            assert main(["mix", "optimize", str(path), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["verdict"] == verdict


def test_ticks_are_round_and_within_the_axis() -> None:
    assert [label for _, label in ticks(0.0, 1.0)] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert [label for _, label in ticks(3.021, 3.043)] == ["3.025", "3.030", "3.035", "3.040"]
    assert [label for _, label in ticks(-30, 450)] == ["0", "100", "200", "300", "400"]


def test_a_chart_keeps_every_mark_within_its_frame() -> None:
    axes = Axes(x=spanning([5.0, 5.0]), y=spanning([1.0, 3.0]))
    assert axes.frame["left"] < axes.at_x(5.0) < axes.frame["right"]
    assert axes.frame["top"] < axes.at_y(3.0) < axes.at_y(1.0) < axes.frame["bottom"]
