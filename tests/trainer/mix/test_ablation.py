"""An ablation over a small corpus: its design, what it refuses, and (slow) its runs, killed on the way."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError, as_toml, parse_table
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.measured_ablation import publish_results
from tests.support.training.weights_folders import random_tensors, write_folder
from trainer.checkpoint.store import METADATA, Position, publish_complete
from trainer.mix.ablation import AblationLaunch, run_ablation
from trainer.mix.proxies import (
    Ablation,
    AblationError,
    open_ablation,
    pending,
    results,
    swarm_of,
    write_design,
)
from trainer.model.config.sizes import model_config
from trainer.options import TrainRecipe, load_train_recipe
from trainer.run.preflight import check_recipe


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [9000], "books": [6000]}).url


def recipe(corpus: str, folder: Path, mix: dict[str, Any] | None, **train: Any) -> TrainRecipe:
    table = {
        "data": corpus,
        "output": str(folder / "run"),
        "model": "debug",
        "seq_len": 32,
        "global_batch": 8,
        "steps": 100,
        "validation": 0.1,
        **train,
    }
    raw: dict[str, Any] = {"run": {"name": f"mixed-{folder.name}"}, "train": table}
    return parse_table(TrainRecipe, raw | ({} if mix is None else {"mix": mix}))


SMALL: dict[str, Any] = {"runs": 4, "replicates": 1, "held_out": 0, "proxy": {"tokens": 2000, "lr": 1e-3}}


def test_a_proxy_is_an_ordinary_training_recipe_with_the_points_mixture(corpus: str, tmp_path: Path) -> None:
    ablation = open_ablation(recipe(corpus, tmp_path, SMALL, workers=2))
    assert (ablation.steps, ablation.tokens) == (8, 2048)
    path = tmp_path / "proxy.toml"
    path.write_text(as_toml(ablation.proxy(ablation.points[2])))
    proxy = load_train_recipe(path)
    assert proxy.train.mixture[0].weights == ablation.points[2].weights
    assert (proxy.train.num_workers, proxy.train.steps, proxy.train.optimizer.lr) == (1, 8, 1e-3)
    assert proxy.train.order.mixture_block == 64


@pytest.mark.parametrize(
    ("proxy", "train", "most"),
    [
        ({"tokens": 2000}, {}, 4096),
        ({"tokens": 40_000}, {}, 20_096),
        ({"tokens": 2000}, {"validation_tokens": 128}, 128),
        ({"tokens": 2000, "validation_tokens": 64}, {"validation_tokens": 128}, 64),
    ],
)
def test_a_proxy_is_judged_on_no_more_than_it_trains_on_unless_the_recipe_says(
    corpus: str, tmp_path: Path, proxy: dict[str, Any], train: dict[str, Any], most: int
) -> None:
    ablation = open_ablation(recipe(corpus, tmp_path, {**SMALL, "proxy": proxy}, **train))
    assert ablation.proxy(ablation.points[0]).train.validation_tokens == most
    held = [round(0.1 * 9000 / 32), round(0.1 * 6000 / 32)]
    assert ablation.validation_tokens == sum(min(num, -(-most // 32)) for num in held) * 32


def test_the_design_tells_what_a_run_costs(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(as_toml(recipe(corpus, tmp_path, SMALL)))
    assert main(["mix", "design", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ablation = open_ablation(load_train_recipe(path))
    assert told["validation_tokens_per_run"] == ablation.validation_tokens
    assert told["flops_per_run"] == ablation.flops_per_token * (2048 + ablation.validation_tokens / 3)
    assert main(["mix", "design", str(path)]) == 0
    words = (
        rf"A run trains on 2,048 tokens and is judged on {ablation.validation_tokens:,}"
        rf" held-out ones: .* of them for"
    )
    assert re.search(words, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("train", "proxy"),
    [
        ({"compile": True, "parallel": {"tp": 2}, "overlap": {"async_tp": True}}, {}),
        ({"compile": True}, {"model": "moe-debug"}),
    ],
    ids=["exchanges of tensor parallel", "compiled, proxies with experts"],
)
def test_proxies_of_a_recipe_that_trains_are_accepted_too(
    corpus: str, tmp_path: Path, train: dict[str, Any], proxy: dict[str, Any]
) -> None:
    asked = recipe(corpus, tmp_path, SMALL | {"proxy": SMALL["proxy"] | proxy}, **train)
    check_recipe(asked)
    ablation = open_ablation(asked)
    check_recipe(ablation.proxy(ablation.points[0]))


def test_proxies_of_a_dense_model_are_compiled_as_the_recipe_says(corpus: str, tmp_path: Path) -> None:
    ablation = open_ablation(recipe(corpus, tmp_path, SMALL, compile=True))
    assert ablation.proxy(ablation.points[0]).train.compile


@pytest.mark.parametrize("kind", ["checkpoint", "safetensors"])
def test_first_weights_of_another_model_than_the_proxies_are_refused_before_the_design(
    corpus: str, tmp_path: Path, kind: str
) -> None:
    def asked(name: str) -> TrainRecipe:
        weights = Folder(str(tmp_path / name))
        config = model_config(name, 256)
        if kind == "checkpoint":
            position = Position(step=1, attempt=1, plan_fingerprint="", order_version=1, model=config)
            weights.publish(METADATA, b"")
            publish_complete(weights, position)
        else:
            write_folder(tmp_path / name, random_tensors(), config)
        return recipe(corpus, tmp_path, SMALL, init_from=weights.url)

    with pytest.raises(RecipeError, match=r"mix\.proxy\.model = 'debug': train\.init_from = '.*/125M'"):
        open_ablation(asked("125M"))
    ablation = open_ablation(asked("debug"))
    assert ablation.proxy(ablation.points[0]).train.init_from == str(tmp_path / "debug")


def test_a_designed_ablation_opens_where_its_first_weights_have_gone(corpus: str, tmp_path: Path) -> None:
    weights = write_folder(tmp_path / "weights", random_tensors())
    asked = recipe(corpus, tmp_path, SMALL, init_from=str(weights))
    write_design(open_ablation(asked))
    (weights / "config.json").unlink()
    assert not write_design(open_ablation(asked))


def test_a_layout_that_no_proxy_can_have_is_refused_before_the_design(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"train\.compile = true: expected false with train\.float8\.emulate"
    ):
        open_ablation(recipe(corpus, tmp_path, SMALL, compile=True, dtype="float8", float8={"emulate": True}))


def begun(ablation: Ablation) -> None:
    """A run of the ablation has begun."""
    ablation.output(ablation.points[0]).publish("attempts/00001.claim", b"{}")


def test_a_design_is_published_once_and_another_is_refused_by_its_keys_once_a_run_has_begun(
    corpus: str, tmp_path: Path
) -> None:
    ablation = open_ablation(recipe(corpus, tmp_path, SMALL))
    assert write_design(ablation)
    assert not write_design(ablation)
    begun(ablation)
    with pytest.raises(RecipeError) as refused:
        write_design(open_ablation(recipe(corpus, tmp_path, SMALL | {"replicates": 2}, global_batch=4)))
    assert "of another design, of which 0 runs are done and 1 begun: " in str(refused.value)
    assert "mix.replicates is 2 now and was 1" in str(refused.value)
    assert "train.global_batch is 4 now and was " in str(refused.value)
    with pytest.raises(AblationError, match="5 of 5 runs are not done"):
        results(ablation)


def test_a_design_of_which_no_run_has_begun_gives_way(corpus: str, tmp_path: Path) -> None:
    write_design(open_ablation(recipe(corpus, tmp_path, SMALL)))
    other = open_ablation(recipe(corpus, tmp_path, SMALL | {"replicates": 2}))
    assert write_design(other)
    assert not write_design(other), "it is published now"


def test_a_design_of_another_run_is_refused_by_its_name(corpus: str, tmp_path: Path) -> None:
    asked = recipe(corpus, tmp_path, SMALL)
    write_design(open_ablation(asked))
    other = replace(asked, run=replace(asked.run, name="other"))
    for refused in (write_design, results):
        with pytest.raises(RecipeError, match=rf"run\.name = 'other': .*is of the run '{asked.run.name}'"):
            refused(open_ablation(other))


def test_results_of_another_design_are_refused(corpus: str, tmp_path: Path) -> None:
    ablation = open_ablation(recipe(corpus, tmp_path, SMALL))
    write_design(ablation)
    publish_results(ablation, lambda point: {"books": 3.0, "web": 4.0})
    assert len(results(ablation)) == 5
    with pytest.raises(RecipeError, match="of another design"):
        results(open_ablation(recipe(corpus, tmp_path, SMALL | {"proxy": {"tokens": 4000, "lr": 1e-3}})))
    with pytest.raises(RecipeError, match="of another design"):
        results(open_ablation(recipe(corpus, tmp_path, SMALL, seq_len=64)))


def test_recipes_that_cannot_be_ablated_are_refused(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no \[mix\]"):
        open_ablation(recipe(corpus, tmp_path, None))
    with pytest.raises(RecipeError, match="validation = 0"):
        open_ablation(recipe(corpus, tmp_path, SMALL, validation=0.0))
    with pytest.raises(RecipeError, match=r"mix\.caps\.blogs: train\.data has no such source"):
        open_ablation(recipe(corpus, tmp_path, SMALL | {"caps": {"blogs": 0.1}}))


def test_a_source_of_which_nothing_is_held_out_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [9000], "books": [6000], "poems": [70]}).url
    asked = SMALL | {"runs": 5}
    with pytest.raises(RecipeError, match=r"train\.validation = 0\.1 holds out no sequence of 'poems': "):
        open_ablation(recipe(corpus, tmp_path, asked))
    assert open_ablation(recipe(corpus, tmp_path, asked, validation=0.2)).num_held_out["poems"] == 1


@pytest.mark.slow
def test_a_killed_ablation_repeats_no_finished_run(corpus: str, tmp_path: Path) -> None:
    ablation = open_ablation(recipe(corpus, tmp_path, SMALL))

    def stop_after_two(line: str) -> None:
        if len(pending(ablation)) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_ablation(ablation, AblationLaunch(num_parallel=1, say=stop_after_two))
    run_ablation(ablation, AblationLaunch())
    assert not pending(ablation)
    found = results(ablation)
    assert swarm_of(found).losses.shape == (5, 2)
    for point in ablation.points[:2]:
        claims = list((tmp_path / "run" / "mix" / "runs" / point.name / "attempts").glob("*.claim"))
        assert len(claims) == 1
    rows = json.loads(ablation.folder.read(f"results/{ablation.points[0].name}.json"))
    assert rows["losses"] == found[0].losses
    assert ablation.folder.read("losses.csv").startswith(b"run,books,web\n0000-natural,")
