"""`sluice plan`: a recipe's model, vocabulary and budget; what it refuses; what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import torch

from lineage.recipe import RecipeError
from pipeline.cli.main import main
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.layouts import dataset, feed_options, staged
from tests.support.training.plans import OVER_EIGHT, mixtral, plan_of, write_recipe
from trainer.data.blocks import LocalBlocks
from trainer.data.corpus import open_corpus
from trainer.data.dataset import Slice
from trainer.data.recipe_order import make_order
from trainer.feed.feed import Feed, FeedSource
from trainer.model.config.sizes import model_config
from trainer.options import load_train_recipe
from trainer.planning.counts import flops_per_token, num_active_parameters, num_parameters
from trainer.planning.plan import plan_training
from trainer.processes.runtime import Process
from trainer.recipe_tables.parallelism import Schedule
from trainer.run.preflight import check_run


def test_a_model_of_experts_has_the_parameters_that_its_paper_says(tmp_path: Path) -> None:
    config = plan_of(tmp_path, mixtral(tmp_path)).layout.config
    # 46.7 billion, of which a token passes 12.9 (mistral.ai/news/mixtral-of-experts).
    assert num_parameters(config) / 1e9 == pytest.approx(46.7, abs=0.05)
    assert num_active_parameters(config) / 1e9 == pytest.approx(12.9, abs=0.05)
    assert flops_per_token(config, 8192) < 6 * num_active_parameters(config) + 12 * 32 * 4096 * 8192


def test_deepseek_moe_has_a_dense_first_layer_and_shared_experts(tmp_path: Path) -> None:
    # DeepSeekMoE 16B (2401.06066, section 5.1.2): 16.4 billion, 2.8 of them a token.
    changes = {
        "model_type": "deepseek",
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": 28,
        "intermediate_size": 10944,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "vocab_size": 102400,
    }
    plan = plan_of(tmp_path, mixtral(tmp_path, **changes), "train.parallel.ep=8")
    assert num_parameters(plan.layout.config) / 1e9 == pytest.approx(16.4, abs=0.05)
    assert num_active_parameters(plan.layout.config) / 1e9 == pytest.approx(2.8, abs=0.05)
    assert (plan.layout.split.stages[0].num_dense, plan.layout.split.stages[0].num_sparse) == (1, 27)
    with pytest.raises(RecipeError, match=r"'deepseek': expected 'llama', .* or 'gpt_oss'"):
        model_config(str(tmp_path / "mixtral.json"), 0)


@pytest.mark.parametrize("schedule", get_args(Schedule))
@pytest.mark.parametrize("global_batch", [1, 7, 9])
def test_a_plan_has_as_many_micro_batches_as_training_feeds(
    tmp_path: Path, schedule: Schedule, global_batch: int
) -> None:
    layout = staged(schedule, pp=4)
    url = make_corpus(str(tmp_path / "out"), {"web": [3000]}).url
    data = dataset(url, Slice(), global_batch=global_batch)
    process = Process(rank=0, world_size=1, device=torch.device("cpu"))
    feed = Feed(
        FeedSource(dataset=data, open_reader=lambda _: LocalBlocks()), feed_options(url, layout, process)
    )
    plan = plan_of(
        tmp_path,
        "train.parallel.dp_shard=1",
        "train.parallel.pp=4",
        f"train.global_batch={global_batch}",
        f"train.pipeline.schedule={schedule}",
    )
    assert plan.layout.num_micro_batches == len(feed.micro_batches(0))
    filled = plan.layout.num_micro_batches > global_batch
    assert any("the others are padding" in note for note in plan.notes) == filled


def test_days_and_cost_follow_from_the_time_of_a_step(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "plan.price=3")
    ideal = 1000 * plan.throughput.step_seconds
    overhead = plan.checkpoints.overhead + plan.checkpoints.restart_overhead
    assert plan.budget.ideal_days == pytest.approx(ideal / 86400)
    assert plan.budget.cost == pytest.approx(3 * 8 * ideal * (1 + overhead) / 3600)
    assert plan.checkpoints.num_bytes == 12 * num_parameters(plan.layout.config)


def test_the_vocabulary_is_the_configs_where_there_is_no_data(tmp_path: Path) -> None:
    assert plan_of(tmp_path).vocabulary.size == 128_256
    assert num_parameters(plan_of(tmp_path).layout.config) == 8_030_261_248
    config = {
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_hidden_layers": 2,
        "intermediate_size": 192,
        "vocab_size": 1000,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    plan = plan_of(tmp_path, f"train.model={path}")
    assert plan.vocabulary.size == 1000
    assert str(path) in plan.vocabulary.origin


def test_vocabulary_and_epochs_are_the_datas_where_there_is_some(tmp_path: Path) -> None:
    make_corpus(str(tmp_path / "out"), {"web": [3000, 1000], "code": [4096]})
    plan = plan_of(tmp_path, f"train.data={tmp_path / 'out'}", "train.model=debug", "train.seq_len=1024")
    assert plan.vocabulary.size == 256
    assert "tiny" in plan.vocabulary.origin
    assert plan.budget.corpus_tokens == 8096
    # Both have four sequences, and the mixture gives each about half of all that are read.
    assert plan.budget.epochs == pytest.approx(
        {"web": 1000 * 64 / 2 / 4, "code": 1000 * 64 / 2 / 4}, rel=0.02
    )


def test_the_epochs_of_a_plan_are_those_that_training_prints_when_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_corpus(str(tmp_path / "out"), {"web": [3000, 1000], "code": [4096]}).url
    entry = """
[[train.mixture]]
weights = { web = 0.9, code = 0.1 }
[[train.mixture]]
first_step = 600
weights = { web = 0.2, code = 0.8 }
"""
    path = write_recipe(tmp_path, spread=OVER_EIGHT + entry)
    changes = [f"train.data={url}", "train.model=debug", "train.seq_len=100", "train.validation=0.1"]
    recipe = load_train_recipe(path, changes)
    printed = "\n".join(check_run(recipe))
    assert plan_training(recipe).budget.epochs == make_order(recipe, open_corpus(recipe.train.outs)).epochs(
        1000 * 64
    )
    assert main(["plan", str(path), *(word for change in changes for word in ("--set", change))]) == 0
    page = capsys.readouterr().out
    for source in ("code", "web"):
        epochs = re.search(rf"source {source}: (.*) epochs in 1000 steps", printed)
        assert epochs is not None
        assert re.search(rf"epochs of {source} +{float(epochs[1]):,.2f}", page)


def test_without_data_a_plan_names_no_epochs(tmp_path: Path) -> None:
    assert plan_of(tmp_path).budget.epochs is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plan.gpu=H1000", "plan.gpu = 'H1000': expected one of H100"),
        ("train.parallel.tp=3", "train.parallel.tp = 3: it must divide"),
        ("train.parallel.pp=33", "train.parallel.pp = 33: with 1 a rank that is 33 stages"),
        ("train.parallel.cp=3", "train.parallel.cp = 3"),
        ("train.parallel.ep=2", "train.parallel.ep = 2: expected 1"),
        ("train.parallel.ep=3", "train.parallel.ep = 3: expected a divisor"),
        (
            "train.parallel.pp=2 train.pipeline.schedule=zbv train.activation_checkpointing=selective",
            "splits backward",
        ),
        (
            "train.parallel.cp=4096 train.context.balance=zigzag train.seq_len=4096",
            'balance = "zigzag": 2 x cp = 8192 must divide',
        ),
        ("train.model=9B", "train.model = '9B': expected a config.json"),
        ("plan.mtbf_hours=0", "plan.mtbf_hours = 0"),
        ("plan.efficiency=1.5", "plan.efficiency = 1.5: expected at most 1"),
    ],
)
def test_a_recipe_that_cannot_be_carried_out_is_refused_by_key(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(RecipeError) as error:
        plan_of(tmp_path, *override.split())
    assert message in str(error.value)


def test_the_command_prints_one_object_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a narrower page breaks lines
    path = write_recipe(tmp_path)
    assert main(["plan", str(path), "--json", "--set", "plan.gpu=h200"]) == 0
    plan = json.loads(capsys.readouterr().out)
    memory = plan["memory"]
    buckets = ("parameters", "gradients", "optimizer_states", "activations")
    assert memory["total"] == pytest.approx(sum(memory[name] for name in buckets))
    assert plan["gpu"]["name"] == "H200"
    assert plan["layout"]["workers"] == 8
    assert main(["plan", str(path)]) == 0
    page = capsys.readouterr().out
    for word in ("optimizer states", "reduce-scatter", "MFU", "Young", "GPU hours"):
        assert word in page
    assert main(["plan", str(path), "--set", "plan.gpu=none"]) == 2


def test_the_plan_of_a_tiny_run_prints_no_figure_that_means_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    tiny = ["model=debug", "seq_len=64", "global_batch=4", "steps=12", "checkpoint.every=6", "workers=1"]
    changes = [f"--set=train.{change}" for change in [*tiny, "parallel.dp_shard=1"]]
    assert main(["plan", str(write_recipe(tmp_path)), *changes]) == 0
    page = capsys.readouterr().out
    assert re.search(r"saving +takes [\d,]+ times as long as the steps: save less often", page)
    assert re.search(r"every \(Young\) .* steps \(the run is shorter\)", page)
    for word in ("Communication", "not hidden", "bubble", "GPU hours", "days"):
        assert word not in page
    assert not re.search(r"\d{3}(\.\d+)?%", page)


def test_copies_on_neighbours_are_planned_with_their_memory_and_time(tmp_path: Path) -> None:
    asked = ("train.recovery.mode=in_place", "train.recovery.spares=1", "train.recovery.neighbour_copy=true")
    (note,) = plan_of(tmp_path, *asked, "plan.inter_gbps=400").notes
    # 12 bytes of 8.03 billion parameters over 8 GPUs.
    assert "keeps 48.2 GB in host memory and sends 12.0 GB a step to the next, 0.24 s" in note
    assert plan_of(tmp_path).notes == ()


def test_weights_that_go_over_one_adapter_a_node_are_noted_with_the_key(tmp_path: Path) -> None:
    over_nodes = "train.parallel.dp_shard=64"
    (note,) = plan_of(tmp_path, over_nodes).notes
    assert "64 GPUs" in note
    assert "--set plan.rails=8" in note
    assert plan_of(tmp_path, over_nodes, "plan.rails=8").notes == ()
    # Tensor peers fill a node, so that a ring of shards has one member there.
    assert plan_of(tmp_path, "train.parallel.dp_shard=8", "train.parallel.tp=8").notes == ()
