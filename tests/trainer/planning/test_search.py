"""The search: its ranking is that of trying everything, its refusals are true, and it finds what papers
found."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest

from lineage.recipe import RecipeError
from pipeline.cli.main import main
from pipeline.cli.training.layouts import overrides
from tests.support.checkout import ROOT
from tests.support.training import plans
from trainer.options import TrainRecipe
from trainer.planning.gpus import machine_of
from trainer.planning.layout import planned_layout
from trainer.planning.memory import memory
from trainer.planning.plan import finished_corpus, plan_training, planned_model
from trainer.planning.search import Candidate, SearchResult, _exotic, _Maker, evaluate, search
from trainer.planning.throughput import EVEN


def recipe_of(tmp_path: Path, *changes: str) -> TrainRecipe:
    return plans.recipe_of(tmp_path, *changes, spread="workers = 8\n")


def fastest_way(tmp_path: Path, *changes: str) -> Candidate:
    """The fastest way to carry out one mesh that fits, by planning each: papers seldom say schedule and
    recomputation so that they can be copied, and what does not fit cannot be compared."""
    found = []
    schedules = [("1f1b", 1), ("gpipe", 1), ("zbv", 2), ("dualpipev", 2)]
    schedules += [
        (name, num) for name in ("interleaved", "interleaved_zero_bubble") for num in (2, 3, 4, 5, 8)
    ]
    for (schedule, num), recompute, less, size in itertools.product(
        schedules, ("none", "selective", "full"), (0, 1), (1, 2, 4)
    ):
        how = (
            f"train.pipeline.schedule={schedule}",
            f"train.pipeline.virtual_stages={num}",
            f"train.pipeline.first_stage_less_layers={less}",
            f"train.pipeline.last_stage_less_layers={less}",
            f"train.activation_checkpointing={recompute}",
            f"train.micro_batch={size}",
        )
        recipe = recipe_of(tmp_path, *changes, *how)
        machine = machine_of(recipe.plan)
        try:
            layout = planned_layout(recipe.train, planned_model(recipe.train, None)[0])
        except RecipeError:
            continue
        if memory(layout).total <= machine.usable_bytes:
            found.append(evaluate(layout, machine))
    return min(found, key=lambda candidate: candidate.throughput.step_seconds)


def gpt(tmp_path: Path, layers: int, width: int, heads: int) -> str:
    """A Llama of the size of a GPT of those papers: its SwiGLU has as many parameters as their 4h MLP."""
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": -(-width * 8 // 3 // 64) * 64,
        "vocab_size": 51_200,
    }
    path = tmp_path / "gpt.json"
    path.write_text(json.dumps(config))
    return f"train.model={path}"


def assert_no_worse(
    tmp_path: Path, published: tuple[str, ...], num_workers: int, *changes: str
) -> SearchResult:
    found = search(recipe_of(tmp_path, f"train.workers={num_workers}", *changes), limit=1)
    (first,) = found.ranked
    theirs = fastest_way(tmp_path, f"train.workers={num_workers}", *changes, *published)
    assert theirs.layout.mesh.num_workers == num_workers
    assert first.throughput.step_seconds <= theirs.throughput.step_seconds * (1 + EVEN)
    return found


@pytest.mark.slow()
@pytest.mark.parametrize(
    ("seq_len", "global_batch", "published"),
    [
        (8192, 2048, ("train.parallel.dp_shard=128",)),
        (131072, 128, ("train.parallel.dp_shard=8", "train.parallel.cp=16")),
    ],
)
def test_nothing_is_slower_than_the_layout_of_llama_3_405b(
    tmp_path: Path, seq_len: int, global_batch: int, published: tuple[str, ...]
) -> None:
    # 2407.21783, table 4: 16,384 H100, TP 8, PP 16, 16 million tokens a step.
    changes = ("train.model=405B", f"train.seq_len={seq_len}", f"train.global_batch={global_batch}")
    mesh = ("train.parallel.tp=8", "train.parallel.pp=16", *published)
    found = assert_no_worse(tmp_path, mesh, 16_384, *changes)
    assert found.num_candidates > 50_000
    # Tensor parallel within a node wins at both lengths, and the longer one needs its sequences split.
    assert found.ranked[0].layout.mesh.tp >= 4
    assert found.ranked[0].layout.mesh.cp > 1 or seq_len == 8192


@pytest.mark.parametrize(
    ("size", "num_workers", "batch", "published"),
    [
        # Korthikanti et al. 2022 (2205.05198), table 3: 22B and 175B on A100.
        ((48, 6144, 64), 8, 4, ("train.parallel.tp=8",)),
        ((96, 12288, 96), 64, 64, ("train.parallel.tp=8", "train.parallel.pp=8")),
        # Narayanan et al. 2021 (2104.04473), table 1: 3.6B and 7.5B.
        ((30, 3072, 32), 64, 512, ("train.parallel.tp=2", "train.parallel.dp_shard=32")),
        ((36, 4096, 32), 128, 512, ("train.parallel.tp=4", "train.parallel.dp_shard=32")),
    ],
)
def test_nothing_is_slower_than_the_layouts_of_megatron(
    tmp_path: Path, size: tuple[int, int, int], num_workers: int, batch: int, published: tuple[str, ...]
) -> None:
    machine = ("plan.gpu=A100",)
    changes = (gpt(tmp_path, *size), "train.seq_len=2048", f"train.global_batch={batch}", *machine)
    assert_no_worse(tmp_path, published, num_workers, *changes)


def test_the_ranking_is_that_of_trying_everything(tmp_path: Path) -> None:
    recipe = recipe_of(
        tmp_path, "train.model=1B", "train.global_batch=32", "plan.gpu=A10G", "plan.gpus_per_node=2"
    )
    maker = _Maker(
        recipe, planned_model(recipe.train, finished_corpus(recipe.train))[0], machine_of(recipe.plan)
    )
    for core in maker.cores():
        maker.spread(core)
    everything = [evaluate(entry.layout, maker.machine) for entry in maker.fitting]
    times = sorted(candidate.throughput.step_seconds for candidate in everything)
    found = search(recipe, limit=len(everything))
    assert found.num_fitting == len(everything) > 50
    # Those in one step of time are ordered by what people run.
    ranked = [candidate.throughput.step_seconds for candidate in found.ranked]
    assert ranked == pytest.approx(times, rel=1.01 * EVEN)
    assert sorted(ranked) == pytest.approx(times, rel=1e-12)
    exotic = [
        (math.floor(math.log(one.throughput.step_seconds) / EVEN), _exotic(one.layout))
        for one in found.ranked
    ]
    assert exotic == sorted(exotic)
    assert {candidate.layout.mesh.pp for candidate in everything} >= {1, 2, 4}
    assert all(candidate.memory.total <= maker.machine.usable_bytes for candidate in everything)
    for axis, by_value in found.by_axis.items():
        for value, candidate in by_value.items():
            of_value = (one for one in everything if getattr(one.layout.mesh, axis) == value)
            least = min(one.throughput.step_seconds for one in of_value)
            assert candidate.throughput.step_seconds == pytest.approx(least, rel=1.01 * EVEN)


def test_gathered_inputs_are_kept_where_there_is_room_and_gathered_again_only_where_not(
    tmp_path: Path,
) -> None:
    recipe = recipe_of(tmp_path, "train.model=8B", "train.global_batch=32", "train.seq_len=8192")
    maker = _Maker(recipe, planned_model(recipe.train, None)[0], machine_of(recipe.plan))
    for core in maker.cores():
        maker.spread(core)
    split = [
        entry.layout
        for entry in maker.fitting
        if entry.layout.mesh.tp > 1 and entry.layout.recompute == "none"
    ]
    assert {layout.gather_again for layout in split} == {False, True}
    for layout in split:
        kept = dataclasses.replace(layout, gather_again=False)
        assert layout.gather_again == (memory(kept).total > maker.machine.usable_bytes)
    assert all(entry.layout.gather_again for entry in maker.fitting if entry.layout.mesh.tp == 1)


def test_the_search_counts_the_memory_of_experts_as_the_plan_does(tmp_path: Path) -> None:
    shape = {"model_type": "deepseek", "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 6}
    experts = {
        "n_routed_experts": 4,
        "moe_intermediate_size": 1024,
        "n_shared_experts": 4,
        "first_k_dense_replace": 1,
    }
    recipe = recipe_of(tmp_path, plans.mixtral(tmp_path, **shape, **experts), "train.global_batch=16")
    maker = _Maker(recipe, planned_model(recipe.train, None)[0], machine_of(recipe.plan))
    for core in maker.cores():
        maker.spread(core)
    assert {(entry.layout.zero, entry.layout.mesh.tp > 1) for entry in maker.fitting} >= {
        (0, True),
        (3, True),
    }
    for entry in maker.fitting[::7]:
        assert entry.total == pytest.approx(memory(entry.layout).total, rel=1e-12)


def test_what_does_not_fit_lacks_what_its_plan_lacks(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, "plan.gpu=L40S")
    found = search(recipe, limit=1)
    lacking = [refused for refused in found.refused if refused.reason == "does not fit"]
    assert len(lacking) > 100
    for refused in lacking[:: len(lacking) // 25]:
        choice = refused.choice
        assert choice.pipeline is not None
        shard = refused.dp_shard or 1
        changes = [
            f"train.parallel.{name}={size}"
            for name, size in (("pp", choice.pp), ("cp", choice.cp), ("tp", choice.tp), ("dp_shard", shard))
        ]
        changes += [f"train.parallel.dp_replicate={choice.dp // shard}", f"train.zero={refused.zero}"]
        changes += [
            f"train.micro_batch={choice.micro_batch}",
            f"train.activation_checkpointing={choice.recompute}",
            f"train.gather_again={'false' if choice.gather_again is False else 'true'}",
        ]
        table = dataclasses.asdict(choice.pipeline)
        changes += [f"train.pipeline.{name}={value}" for name, value in table.items() if value is not None]
        plan = plan_training(recipe_of(tmp_path, "plan.gpu=L40S", *changes))
        assert not plan.fits
        assert plan.memory.total - plan.machine.usable_bytes == pytest.approx(refused.excess_bytes)
        assert "lacks" in refused.text


def test_the_first_layout_plans_as_it_was_ranked(tmp_path: Path) -> None:
    changes = ("train.workers=64", "train.model=70B", "train.global_batch=256", "plan.gpu=H200")
    first = search(recipe_of(tmp_path, *changes), limit=1).ranked[0]
    plan = plan_training(recipe_of(tmp_path, *changes, *overrides(first)))
    assert plan.throughput == first.throughput
    assert plan.memory == first.memory


def test_layouts_without_tensor_parallel_are_found_for_a_recipe_that_overlaps_its_exchanges(
    tmp_path: Path,
) -> None:
    changes = ("train.model=1B", "train.compile=true", "train.overlap.async_tp=true", "train.parallel.tp=2")
    recipe = plans.recipe_of(tmp_path, *changes, spread="workers = 8\n")
    found = search(recipe, limit=1)
    assert found.own is not None
    assert {1, 2} <= set(found.by_axis["tp"])
    for tp, candidate in found.by_axis["tp"].items():
        plan = plan_training(recipe_of(tmp_path, *changes, *overrides(candidate)))
        assert plan.layout == candidate.layout
        assert plan.layout.async_tp == (tp > 1)


def test_tensor_parallel_over_nodes_is_refused_and_would_lose(tmp_path: Path) -> None:
    changes = ("train.workers=64", "train.model=70B", "train.global_batch=64", "plan.gpus_per_node=4")
    found = search(recipe_of(tmp_path, *changes), limit=1)
    over = [refused for refused in found.refused if refused.reason == "tp over a node"]
    assert {refused.choice.tp for refused in over} == {8, 16, 32, 64}
    assert max(found.by_axis["tp"]) == 4
    assert set(found.by_axis["tp"]) == {1, 2, 4}
    apart = fastest_way(tmp_path, *changes, "train.parallel.tp=8")
    slower = apart.throughput.step_seconds / found.by_axis["tp"][4].throughput.step_seconds - 1
    assert slower > 0.1
    assert f"{slower:.0%} slower with tp = 8 than with tp = 4" in " ".join(
        (ROOT / "docs" / "plan.md").read_text().split()
    )


def test_tensor_parallel_that_does_not_divide_a_node_is_refused(tmp_path: Path) -> None:
    changes = ("train.workers=12", "train.model=1B", "train.global_batch=48", "plan.gpus_per_node=6")
    found = search(recipe_of(tmp_path, *changes), limit=1)
    # Of 6 GPUs a node has room for one group of four, and a second one would lie on two nodes.
    over = {refused.choice.tp for refused in found.refused if refused.reason == "tp over a node"}
    assert over == {4, 12}
    assert set(found.by_axis["tp"]) == {1, 2}


def test_context_parallel_pays_only_past_some_length(tmp_path: Path) -> None:
    # The same million tokens a step in ever longer sequences.
    sizes = {}
    for power in (13, 14, 15, 16, 17, 19):
        batch = 2**20 >> power
        changes = ("train.workers=64", f"train.seq_len={2**power}", f"train.global_batch={batch}")
        sizes[2**power] = search(recipe_of(tmp_path, *changes), limit=1).ranked[0].layout.mesh.cp
    assert sizes[8192] == 1
    first = min(length for length, cp in sizes.items() if cp > 1)
    assert 8192 < first <= 524288
    assert all(cp > 1 for length, cp in sizes.items() if length >= first)


def test_experts_are_spread_where_that_is_faster(tmp_path: Path) -> None:
    found = search(
        recipe_of(tmp_path, plans.mixtral(tmp_path), "train.workers=16", "train.global_batch=64"), limit=1
    )
    assert set(found.by_axis["ep"]) == {1, 2, 4, 8}
    times = {ep: candidate.throughput.step_seconds for ep, candidate in found.by_axis["ep"].items()}
    assert found.ranked[0].throughput.step_seconds == pytest.approx(min(times.values()), rel=1.01 * EVEN)
    assert times[8] < times[1]


def test_the_command_ranks_and_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe_of(tmp_path)
    path = str(tmp_path / "train.toml")
    small = ("--set", "train.model=1B", "--set", "train.parallel.tp=2")
    assert main(["plan", path, "--search", "--json", "--limit", "3", *small]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["candidates"] == found["fitting"] + len(found["refused"])
    times = [layout["step_seconds"] for layout in found["layouts"]]
    assert len(times) == 3
    assert times == pytest.approx(sorted(times), rel=1.01 * EVEN)
    assert found["own"]["tp"] == 2
    assert {"reason", "text", "pp", "tp"} <= found["refused"][0].keys()
    assert main(["plan", path, "--search", *small]) == 0
    page = capsys.readouterr().out
    for words in (
        "Fastest layouts",
        "1 before 2: ",
        "--set train.parallel.dp_shard=8",
        "Refused",
        "gone through twice",
        "recipe:",
    ):
        assert words in page
    assert main(["plan", path, "--search", "--set", "train.model=405B"]) == 1
    assert "No layout fits" in capsys.readouterr().out
    assert main(["plan", path, "--search", "--set", "train.dtype=float8", "--set", "plan.gpu=A100"]) == 2


def test_a_bubble_is_never_below_nothing(tmp_path: Path) -> None:
    changes = ("train.workers=64", "train.global_batch=64", "train.parallel.dp_shard=64")
    found = search(recipe_of(tmp_path, *changes), limit=200)
    assert not [c.layout for c in found.ranked if f"{c.throughput.bubble:.1%}".startswith("-")]
