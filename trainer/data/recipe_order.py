"""The order that a training recipe asks for over its corpus. No torch here: it is made before anything is
started."""

from __future__ import annotations

from lineage.recipe import RecipeError
from trainer.data.corpus import Corpus
from trainer.options import TrainRecipe
from trainer.order import Order, OrderOptions, OrderPlan, plan_order


def make_order(recipe: TrainRecipe, corpus: Corpus) -> Order:
    """The order that the recipe asks for over this corpus. RecipeError where sizes or mixture do not fit
    it."""
    return Order(plan_of(recipe, corpus))


def plan_of(recipe: TrainRecipe, corpus: Corpus) -> OrderPlan:
    """The plan of `make_order`."""
    table = recipe.train
    options = OrderOptions(
        seed=recipe.seed,
        seq_len=table.seq_len,
        global_batch=table.global_batch,
        window_blocks=table.order.window_blocks,
        mixture_block=table.order.mixture_block,
        validation=table.validation,
        mixture=tuple((entry.first_step, entry.weights) for entry in table.mixture),
    )
    try:
        return plan_order(corpus.lengths, options, corpus.repeats)
    except ValueError as error:
        raise RecipeError(f"[train]: {error}") from error
