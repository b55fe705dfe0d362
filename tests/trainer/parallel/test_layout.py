"""What cannot be spread is refused in one sentence that names the key, the value and what to do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError, parse_table
from tests.support.training.transformers_models import reference_model
from trainer.model.config.sizes import model_config
from trainer.options import TrainRecipe
from trainer.parallel.checks import check_layout, check_overlap
from trainer.recipe_tables.parallelism import OverlapTable

CONFIG = dataclasses.replace(model_config("debug", 250), num_layers=8)


def check(changes: dict[str, Any]) -> None:
    table = {
        "data": "out",
        "output": "run",
        "model": "debug",
        "seq_len": 32,
        "global_batch": 8,
        "steps": 1,
        **changes,
    }
    config = CONFIG if table["model"] == "debug" else model_config(table["model"], 250)
    check_layout(parse_table(TrainRecipe, {"run": {"name": "refused"}, "train": table}).train, config)


def sizes(**of: int) -> dict[str, Any]:
    return {"parallel": of}


def staged(schedule: str, **rest: Any) -> dict[str, Any]:
    return {"parallel": {"pp": 2}, "pipeline": {"schedule": schedule, **rest}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "positions over tensor peers": (sizes(tp=3), "parallel.tp = 3: it must divide the model's heads, 8"),
    "key-value heads": (sizes(tp=8), "parallel.tp = 8: it must divide the model's key-value heads, 4"),
    "sequence over tensor peers": (
        {**sizes(tp=4), "seq_len": 30},
        "parallel.tp = 4: it must divide train.seq_len, 30",
    ),
    "sequence over context peers": (
        sizes(cp=3),
        "parallel.cp = 3: with tp = 1 it must divide train.seq_len, 32",
    ),
    "sequence over both": (
        {**sizes(cp=4, tp=4), "seq_len": 40},
        "cp = 4: with tp = 4 it must divide train.seq_len, 40",
    ),
    "zigzag": (
        {**sizes(cp=2), "seq_len": 30},
        'balance = "zigzag": 2 x cp = 4 must divide train.seq_len, 30',
    ),
    "workers": ({**sizes(pp=2, tp=2), "workers": 6}, "workers = 6: expected the product of"),
    "workers and context": ({**sizes(cp=4), "workers": 2}, "workers = 2: expected the product of"),
    "more stages than layers": (sizes(pp=16), "pp = 16: with 1 a rank that is 16 stages"),
    "more virtual stages than layers": (
        {"parallel": {"pp": 4}, "pipeline": {"schedule": "interleaved", "virtual_stages": 4}},
        "pp = 4: with 4 a rank that is 16 stages",
    ),
    "a first stage without layers to give": (
        {"parallel": {"pp": 4}, "pipeline": {"first_stage_less_layers": 5}},
        "one would have none of the model's 8 layers",
    ),
    "a last stage without layers to give": (
        {"parallel": {"pp": 4}, "pipeline": {"last_stage_less_layers": 5}},
        "one would have none of the model's 8 layers",
    ),
    "1f1b of two": (
        staged("1f1b", virtual_stages=2),
        "virtual_stages = 2: expected 1 with schedule = '1f1b'",
    ),
    "gpipe of two": (
        staged("gpipe", virtual_stages=2),
        "virtual_stages = 2: expected 1 with schedule = 'gpipe'",
    ),
    "interleaved of one": (
        staged("interleaved", virtual_stages=1),
        "virtual_stages = 1: expected at least 2",
    ),
    "zero bubble of one": (staged("interleaved_zero_bubble", virtual_stages=1), "= 1: expected at least 2"),
    "zbv of three": (staged("zbv", virtual_stages=3), "virtual_stages = 3: expected 2 with schedule = 'zbv'"),
    "dualpipev of one": (
        staged("dualpipev", virtual_stages=1),
        "= 1: expected 2 with schedule = 'dualpipev'",
    ),
    **{
        f"{schedule} and selective recomputation": (
            {**staged(schedule), "activation_checkpointing": "selective"},
            'activation_checkpointing = "selective": train.pipeline.schedule',
        )
        for schedule in ("interleaved_zero_bubble", "zbv", "dualpipev")
    },
    **{
        f"{schedule} and compiled layers": (
            {**staged(schedule), "compile": True},
            "compile = true: train.pipeline",
        )
        for schedule in ("interleaved_zero_bubble", "zbv", "dualpipev")
    },
    "experts of a model without": (
        sizes(ep=2, dp_shard=2),
        "parallel.ep = 2: expected 1, the model has no experts",
    ),
    "experts over too many": (
        sizes(ep=4, dp_shard=2),
        "parallel.ep = 4: expected a divisor of dp_shard x cp x tp",
    ),
    "experts over a number that does not divide them": (
        {**sizes(ep=3, dp_shard=3), "model": "moe-debug"},
        "parallel.ep = 3: it must divide the model's experts, 8",
    ),
    "experts of whole models": (
        {**sizes(ep=2, dp_shard=2), "zero": 0, "model": "moe-debug"},
        "zero = 0: expected 1, 2 or 3 with train.parallel.ep",
    ),
    "experts that are compiled": (
        {"compile": True, "model": "moe-debug"},
        "compile = true: expected false with experts",
    ),
    "exchanges in pieces without a compiler": (
        {**sizes(tp=2), "overlap": {"async_tp": True}},
        "overlap.async_tp = true: expected train.compile = true and train.parallel.tp above 1 (it is 2)",
    ),
    "exchanges in pieces without peers": (
        {"compile": True, "overlap": {"async_tp": True}},
        "train.parallel.tp above 1 (it is 1)",
    ),
    "spread tensor peers": (
        {**sizes(tp=2), "resources": {"placement": "SPREAD"}},
        "tensor-parallel peers share a node",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_does_not_fit_is_refused_by_its_key(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(RecipeError) as refused:
        check(changes)
    said = str(refused.value)
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (OverlapTable(async_tp=True), "async_tp = true: this is a cpu, and it needs NVIDIA GPUs"),
        (
            OverlapTable(prefetch_layers=2),
            "prefetch_layers = 2: this is a cpu, which gathers nothing beside computing",
        ),
    ],
)
def test_overlap_is_refused_where_there_is_no_gpu(table: OverlapTable, message: str) -> None:
    check_overlap(OverlapTable(), "cpu")
    check_overlap(table, "cuda")
    with pytest.raises(RecipeError, match=message):
        check_overlap(table, "cpu")


@pytest.mark.parametrize(
    "fits",
    [
        sizes(tp=4, cp=2, pp=2, dp_shard=3, dp_replicate=2),
        {**sizes(cp=2), "seq_len": 30, "context": {"balance": "none"}},
        {**staged("1f1b"), "activation_checkpointing": "selective", "compile": True},
        {**staged("zbv"), "activation_checkpointing": "full"},
        {"parallel": {"pp": 2}, "pipeline": {"schedule": "interleaved", "virtual_stages": 4}},
    ],
)
def test_a_layout_that_fits_is_let_pass(fits: dict[str, Any]) -> None:
    check(fits)


OF_FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "experts of a model without": ("olmo3", sizes(ep=2, dp_shard=2), "ep = 2: expected 1, the model has no experts"),
    "experts over peers that do not divide them": (
        "gpt_oss", sizes(ep=3, dp_shard=3), "parallel.ep = 3: it must divide the model's experts, 4",
    ),
    "experts that are compiled": ("deepseek_v3", {"compile": True}, "compile = true: expected false with experts"),
    "experts spread and not sharded": (
        "qwen3_moe", {**sizes(ep=2, dp_shard=2), "zero": 0}, "train.zero = 0: expected 1, 2 or 3",
    ),
    "heads made from latents": ("deepseek_v3", sizes(tp=8), "parallel.tp = 8: it must divide the model's heads, 4"),
    "key-value heads with sinks": ("gpt_oss", sizes(tp=4), "tp = 4: it must divide the model's key-value heads, 2"),
    "norms over all heads": ("olmo2", sizes(tp=4), "tp = 4: it must divide the model's key-value heads, 2"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "message"), OF_FAMILIES.values(), ids=OF_FAMILIES)
def test_what_a_family_cannot_have_is_refused_by_key(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(reference_model(family).config))
    with pytest.raises(RecipeError, match=message):
        check({"model": str(tmp_path), **changes})
