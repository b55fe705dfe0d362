"""Memory: a plan is within 10% of what torch's CPU allocator hands out for a scaled-down twin, layout by
layout."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, get_args

import pytest

from tests.support.checkout import ROOT
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.allocated import TwinBatch, peaks, planned_peak
from tests.support.training.layouts import mesh
from trainer.model.config.description import Experts, ModelConfig
from trainer.model.config.families import from_hugging_face
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.recompute import Recompute
from trainer.recipe_tables.parallelism import ContextTable, ExpertsTable, PipelineTable, Schedule

DENSE = ModelConfig(
    num_layers=8, width=256, num_heads=8, num_kv_heads=4, head_dim=32, hidden=768, vocab_size=2048, tied=False
)
SPARSE = dataclasses.replace(DENSE, hidden=256, experts=Experts(num_experts=8, top_k=2, hidden=256))
LARGE_EXPERTS = dataclasses.replace(DENSE, hidden=512, experts=Experts(num_experts=8, top_k=4, hidden=512))
"""Four of eight experts of twice the width: what they keep is a good part of the whole."""

SHARED_EXPERTS = dataclasses.replace(
    DENSE, hidden=256, experts=Experts(num_experts=4, top_k=2, hidden=256, num_shared=16)
)
"""Half of a layer's weights are shared experts, which tensor peers have whole."""


def staged(schedule: Schedule, recompute: Recompute = "none", **sizes: int) -> ParallelLayout:
    return ParallelLayout(mesh=mesh(**sizes), pipeline=PipelineTable(schedule=schedule), recompute=recompute)


FAST = {
    "zero 3 over 2": ParallelLayout(mesh=mesh(dp_shard=2)),
    "pp 2, 1f1b": staged("1f1b", pp=2),
}
LARGER = {
    "one process": ParallelLayout(mesh=mesh()),
    "ddp 2": ParallelLayout(mesh=mesh(dp_replicate=2), zero=0),
    "zero 1 over 2": ParallelLayout(mesh=mesh(dp_shard=2), zero=1),
    "zero 2 over 2": ParallelLayout(mesh=mesh(dp_shard=2), zero=2),
    "zero 3 over 4": ParallelLayout(mesh=mesh(dp_shard=4)),
    "hsdp 2 x 2": ParallelLayout(mesh=mesh(dp_replicate=2, dp_shard=2)),
    "zero 3 over 2, all recomputed": ParallelLayout(mesh=mesh(dp_shard=2), recompute="full"),
    "zero 3 over 2, some recomputed": ParallelLayout(mesh=mesh(dp_shard=2), recompute="selective"),
    "tp 2": ParallelLayout(mesh=mesh(tp=2)),
    "tp 2 x zero 3 over 2": ParallelLayout(mesh=mesh(tp=2, dp_shard=2)),
    **{
        f"cp {cp}, {method}": ParallelLayout(mesh=mesh(cp=cp), context=ContextTable(method=method))
        for cp in (2, 4)
        for method in ("gather", "ring")
    },
    "cp 2 x zero 3 over 2": ParallelLayout(mesh=mesh(cp=2, dp_shard=2)),
    "cp 2 x tp 2": ParallelLayout(mesh=mesh(cp=2, tp=2)),
    **{
        f"pp {pp}, {schedule}": staged(schedule, pp=pp)
        for pp in (2, 4)
        for schedule in ("gpipe", "1f1b", "interleaved", "interleaved_zero_bubble", "zbv", "dualpipev")
        if (pp, schedule) != (2, "1f1b")
        and pp * (1 if schedule in ("gpipe", "1f1b") else 2) <= DENSE.num_layers
    },
    "pp 2 x zero 3 over 2": staged("1f1b", pp=2, dp_shard=2),
    "pp 2 x tp 2": staged("1f1b", pp=2, tp=2),
    "pp 2 x cp 2": staged("1f1b", pp=2, cp=2),
    "pp 2, all recomputed": staged("1f1b", "full", pp=2),
    "pp 2 x dp_shard 2 x tp 2": staged("1f1b", pp=2, dp_shard=2, tp=2),
}
WITH_EXPERTS = {
    "experts in one process": ParallelLayout(mesh=mesh()),
    "ep 2 of zero 3 over 2": ParallelLayout(mesh=mesh(dp_shard=2, ep=2)),
    "ep 4 of zero 3 over 4": ParallelLayout(mesh=mesh(dp_shard=4, ep=4)),
    "ep 2 of tp 2": ParallelLayout(mesh=mesh(tp=2, ep=2)),
    "experts, zero 0 of tp 2": ParallelLayout(mesh=mesh(tp=2), zero=0),
    "ep 2 of pp 2 x zero 3 over 2": staged("1f1b", pp=2, dp_shard=2, ep=2),
    "ep 2 of pp 2 x dp_shard 2 x cp 2": staged("1f1b", pp=2, dp_shard=2, cp=2, ep=2),
}
WITH_LARGE_EXPERTS = {
    f"large experts, {recompute}": ParallelLayout(mesh=mesh(), recompute=recompute)
    for recompute in get_args(Recompute)
}
ZEROS: tuple[Literal[1, 2, 3], ...] = (1, 2, 3)
WITH_SHARED_EXPERTS = {
    **{f"shared experts, zero {zero} of tp 2": ParallelLayout(mesh=mesh(tp=2), zero=zero) for zero in ZEROS},
    **{
        f"shared experts, ep 2 of tp 2 x zero {zero} over 2": ParallelLayout(
            mesh=mesh(tp=2, dp_shard=2, ep=2), zero=zero
        )
        for zero in ZEROS
    },
    "shared experts, pp 2 x tp 2": staged("1f1b", pp=2, tp=2),
}
LAYOUTS = FAST | LARGER | WITH_EXPERTS | WITH_LARGE_EXPERTS | WITH_SHARED_EXPERTS


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_corpus(str(tmp_path_factory.mktemp("out")), {"web": [60_000]}).url


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in LAYOUTS],
)
def test_a_twin_allocates_what_is_planned(name: str, corpus: str, tmp_path: Path) -> None:
    layout, config = LAYOUTS[name], SPARSE if name in WITH_EXPERTS else DENSE
    batch = TwinBatch(micro_batch=1 if layout.mesh.pp > 1 else 2)
    if name in WITH_SHARED_EXPERTS:
        config = SHARED_EXPERTS
    if name in WITH_LARGE_EXPERTS:
        config, batch = LARGE_EXPERTS, TwinBatch(micro_batch=8, global_batch=16)
    found = peaks(tmp_path, corpus, layout, config, batch)
    planned = planned_peak(layout, config, batch)
    assert max(found) == pytest.approx(planned.total, rel=0.1), planned


_SHAPE = {
    "num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 2048, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
}  # fmt: skip
FAMILIES: dict[str, dict[str, object]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "olmo3": {"sliding_window": 64},
    "gemma2": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64},
    "deepseek_v3": {
        "num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
        "v_head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    },
    "smollm3": {},
    "gpt_oss": {
        "head_dim": 32, "sliding_window": 64, "num_local_experts": 8, "num_experts_per_tok": 2,
        "intermediate_size": 256,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "qwen3" else pytest.mark.slow) for name in FAMILIES]
)
def test_a_twin_of_a_family_allocates_what_is_planned(name: str, corpus: str, tmp_path: Path) -> None:
    config = from_hugging_face({"model_type": name, **_SHAPE, **FAMILIES[name]}, where=name)
    # A plan spreads tokens evenly: what a router without training drops is not in it.
    layout, batch = ParallelLayout(mesh=mesh(), experts=ExpertsTable(capacity_factor=0)), TwinBatch()
    (found,) = peaks(tmp_path, corpus, layout, config, batch)
    planned = planned_peak(layout, config, batch)
    assert found == pytest.approx(planned.total, rel=0.05), planned


def test_the_page_of_the_planner_counts_these_layouts() -> None:
    page = " ".join((ROOT / "docs" / "plan.md").read_text().split())
    assert f"in all {len(LAYOUTS)} layouts: every ZeRO level" in page
