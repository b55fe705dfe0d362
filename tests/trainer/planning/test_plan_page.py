"""docs/plan.md says what the planner says today: its figures, reckoned again by the calls that stand beside
them."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.support.checkout import ROOT
from trainer.options import TrainRecipe, load_train_recipe
from trainer.planning.plan import plan_training
from trainer.planning.roofline import roofline
from trainer.planning.search import search

PAGE = (ROOT / "docs" / "plan.md").read_text()
PROSE = " ".join(PAGE.split())
CALL = re.compile(r"^    sluice plan (\S+)((?: --\S+(?: \S+=\S+)?)*)", re.MULTILINE)
CALLS = [(found[1], shlex.split(found[2])) for found in CALL.finditer(re.sub(r" *\\\n *", " ", PAGE))]


def recipe_of(*words: str, searching: bool = False, changes: tuple[str, ...] = ()) -> TrainRecipe:
    """The recipe of the page's one call with these words, and with `changes`."""
    (call,) = [
        call for call in CALLS if {*words} <= {call[0], *call[1]} and searching == ("--search" in call[1])
    ]
    return load_train_recipe(ROOT / call[0], [*(word for word in call[1] if "=" in word), *changes])


def test_the_8b_takes_the_memory_and_reaches_the_share_of_the_peak_that_the_page_says() -> None:
    plan = plan_training(recipe_of("recipes/sizes/8B.toml"))
    assert f"it says {plan.memory.total / 2**30:.1f} GiB and {plan.throughput.mfu:.1%} of the peak" in PROSE


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ((), "reaches {0} of the peak at 8,192 tokens and {1} at 131,072 with CP 16"),
        ((), "it fits: it takes {2} GB and {3} GB"),
        (
            ("train.activation_checkpointing=selective",),
            "it takes {2} GB and {3} GB, and reaches {0} and {1}.",
        ),
    ],
)
def test_the_405b_takes_and_reaches_what_the_page_says(changes: tuple[str, ...], says: str) -> None:
    found = [
        plan_training(recipe_of("train.model=405B", f"train.seq_len={length}", changes=changes))
        for length in (8192, 131072)
    ]
    shares, sizes = (
        [of(plan) for plan in found] for of in (lambda p: p.throughput.mfu, lambda p: p.memory.total)
    )
    assert (
        says.format(*(f"{share:.1%}" for share in shares), *(f"{size / 1e9:.1f}" for size in sizes)) in PROSE
    )
    assert all(plan.fits for plan in found)


def test_the_405b_on_half_as_many_gpus_has_the_room_that_the_page_says() -> None:
    half = ("train.workers=8192", "train.parallel.dp_shard=64")
    plan = plan_training(recipe_of("train.model=405B", "train.seq_len=8192", changes=half))
    share, size = plan.throughput.mfu, plan.memory.total
    assert f"reaches {share:.1%} (published: 43%)" in PROSE
    assert f"takes {size / 1e9:.2f} of the {plan.machine.usable_bytes / 1e9:.2f} GB" in PROSE
    assert plan.fits


def test_the_405b_that_keeps_gathered_inputs_takes_and_reaches_what_the_page_says() -> None:
    found = plan_training(
        recipe_of("train.model=405B", "train.seq_len=8192", changes=("train.gather_again=false",))
    )
    share, size = found.throughput.mfu, found.memory.total
    assert f"takes {size / 1e9:.1f} GB on 16,384 and reaches {share:.1%}" in PROSE


@pytest.mark.parametrize(
    ("length", "says"), [(16384, "splits no sequence of 16,384 tokens"), (32768, "and none of 32,768")]
)
def test_sequences_of_the_8b_are_as_whole_as_the_page_says(length: int, says: str) -> None:
    (first,) = search(
        recipe_of(f"train.seq_len={length}", "recipes/sizes/8B.toml", searching=True), limit=1
    ).ranked
    assert first.layout.mesh.cp == 1
    assert first.layout.mesh.tp == 2
    assert says in PROSE


@pytest.mark.slow()
@pytest.mark.parametrize(
    ("length", "says"),
    [
        (8192, "{} layouts of Llama 3 405B on 16,384 GPUs at 8,192 tokens"),
        (131072, "s of processor time, {} at 131,072"),
    ],
)
def test_a_search_looks_at_as_many_layouts_as_the_page_says(length: int, says: str) -> None:
    found = search(recipe_of("train.model=405B", f"train.seq_len={length}", searching=True), limit=1)
    assert says.format(f"{found.num_candidates:,}") in PROSE


def test_the_all_to_all_overtakes_at_as_many_experts_as_the_page_says() -> None:
    found = roofline(load_train_recipe(ROOT / "recipes" / "train.toml"))
    assert found.overtaken is not None
    assert f"it is longer ({found.overtaken.num_experts} with two experts a token on H100" in PROSE
