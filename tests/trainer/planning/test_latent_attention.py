"""DeepSeek-V2's and V3's config.json: latent attention, groups of experts, all-to-alls that pairs of passes
hide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import RecipeError
from tests.support.checkout import ROOT
from tests.support.training.plans import DEEPSEEK_V3, plan_of, recipe_of
from trainer.model.config.description import Experts, ModelConfig
from trainer.model.config.families import PLANNED_KINDS
from trainer.model.config.sizes import model_config
from trainer.options import PlanTable
from trainer.planning.communication import all_to_all_path
from trainer.planning.counts import num_multiplied_parameters, num_parameters
from trainer.planning.gpus import machine_of
from trainer.planning.plan import TrainingPlan
from trainer.planning.search import search

V2_LITE = DEEPSEEK_V3 | {
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "topk_group": 1,
    "vocab_size": 102400,
}


def written(folder: Path, raw: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(raw))
    return str(path)


def config(folder: Path, raw: dict[str, Any]) -> ModelConfig:
    return model_config(written(folder, raw), 0, PLANNED_KINDS)


def as_it_ran(folder: Path, *changes: str) -> TrainingPlan:
    """DeepSeek-V3's training (2412.19437, sections 3.2 and 4.2): PP 16, EP 64 over 8 nodes, ZeRO-1."""
    return plan_of(
        folder,
        *v3(folder),
        "train.zero=1",
        "train.parallel.pp=16",
        "train.parallel.ep=64",
        "train.parallel.dp_shard=128",
        "train.pipeline.schedule=dualpipev",
        *changes,
    )


def v3(folder: Path) -> tuple[str, ...]:
    """What of its training is not the layout."""
    return (
        f"train.model={written(folder, DEEPSEEK_V3)}",
        "train.workers=2048",
        "train.seq_len=4096",
        "train.global_batch=15360",
        "train.dtype=float8",
        "plan.gpu=H800",
    )


def test_the_parameters_are_those_that_the_reports_print(tmp_path: Path) -> None:
    large, small = config(tmp_path, DEEPSEEK_V3), config(tmp_path, V2_LITE)
    assert num_parameters(large) == pytest.approx(
        671e9, rel=1e-3
    )  # 2412.19437, abstract: 671B, of them 37B a token
    assert num_multiplied_parameters(large) == pytest.approx(37e9, rel=0.02)
    assert num_parameters(small) == pytest.approx(15.7e9, rel=0.005)  # 2405.04434, appendix B: 15.7B, 2.4B
    assert num_multiplied_parameters(small) == pytest.approx(2.4e9, rel=0.06)


def test_deepseek_v3_takes_as_many_gpu_hours_as_were_published(tmp_path: Path) -> None:
    plan = as_it_ran(tmp_path)
    seconds_a_trillion = plan.throughput.step_seconds / (15360 * 4096) * 1e12
    hours = seconds_a_trillion * 2048 / 3600
    assert hours == pytest.approx(180_000, rel=0.1)  # section 1: 180K H800 hours a trillion tokens


@pytest.mark.slow()
def test_a_search_puts_first_what_the_page_says(tmp_path: Path) -> None:
    found = search(recipe_of(tmp_path, *v3(tmp_path), spread=""), limit=1)
    (first,) = found.ranked
    mesh, speed = first.layout.mesh, first.throughput
    row = f"TP {mesh.tp}, PP {mesh.pp}, EP {mesh.ep}, {first.layout.pipeline.schedule}, dp {mesh.dp}"
    row = f"| DeepSeek-V3, 2,048 | {row} | {first.memory.total / 1e9:.1f} | {speed.mfu:.1%} |"
    page = " ".join((ROOT / "docs" / "plan.md").read_text().split())
    assert row in page
    assert f"{found.num_candidates:,} of DeepSeek-V3 on 2,048" in page
    published = as_it_ran(tmp_path, "train.micro_batch=1")
    theirs, ours = (
        of.step_seconds / (15360 * 4096) * 1e12 * 2048 / 3600 for of in (published.throughput, speed)
    )
    assert f"{round(theirs, -2):,.0f} GPU hours a trillion tokens and not {round(ours, -2):,.0f}." in page
    assert not published.fits
    assert f"it takes {published.memory.total / 1e9:.1f} GB where 70.4 are to be had" in page
    assert f"{published.memory.activations / 1e9:.1f} GB are activations" in page
    again = as_it_ran(tmp_path, "train.micro_batch=1", "train.activation_checkpointing=full")
    assert f"With `full` it takes {again.memory.total / 1e9:.1f} GB" in page


def test_pairs_of_passes_hide_all_to_alls_that_other_schedules_wait_for(tmp_path: Path) -> None:
    paired, split = as_it_ran(tmp_path), as_it_ran(tmp_path, "train.pipeline.schedule=zbv")
    assert paired.throughput.compute_seconds == split.throughput.compute_seconds
    assert split.throughput.exposed_seconds > 4 * paired.throughput.exposed_seconds
    assert any("one after the other" in note for note in paired.notes)
    assert not any("one after the other" in note for note in split.notes)


def test_a_token_goes_to_each_node_of_its_groups_once() -> None:
    machine = machine_of(PlanTable(gpu="H800"))
    limited = Experts(num_experts=256, top_k=8, hidden=2048, num_groups=8, top_groups=4)
    plain, grouped = (all_to_all_path(64, machine, 2048, experts) for experts in (None, limited))
    assert grouped.gbps == pytest.approx(2 * plain.gbps)
    # A group over two nodes saves nothing, and what stays in a node is sent as ever.
    assert all_to_all_path(128, machine, 2048, limited).gbps == all_to_all_path(128, machine, 2048).gbps
    assert all_to_all_path(8, machine, 2048, limited).gbps == all_to_all_path(8, machine, 2048).gbps


def test_latents_are_kept_for_backward_in_the_place_of_what_is_made_from_them(tmp_path: Path) -> None:
    raw = written(tmp_path, V2_LITE)
    none, selective = (
        plan_of(
            tmp_path,
            f"train.model={raw}",
            "train.parallel.dp_shard=8",
            f"train.activation_checkpointing={recompute}",
        )
        for recompute in ("none", "selective")
    )
    assert selective.memory.activations < 0.7 * none.memory.activations
    assert selective.throughput.step_seconds > none.throughput.step_seconds


def test_what_cannot_be_trained_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"model_type = 'deepseek_v2': expected 'llama', .* or 'gpt_oss'"):
        model_config(written(tmp_path, V2_LITE), 0)


def test_a_latent_that_is_missing_is_named(tmp_path: Path) -> None:
    raw = {name: value for name, value in DEEPSEEK_V3.items() if name != "kv_lora_rank"}
    with pytest.raises(RecipeError, match=r"kv_lora_rank is missing: expected a deepseek_v3 config\.json"):
        config(tmp_path, raw)
