"""What each parameter is to an optimizer, by its name and its shape. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, get_args

from lineage.recipe import RecipeError
from trainer.model.config.description import LatentAttention
from trainer.recipe_tables.optimizer import OptimizerGroup, Role

ROLES: Final = get_args(Role)
DECAYING: Final = ("matrix", "embedding", "head", "router")
"""Roles whose weights decay where no group says otherwise."""


def role_of(name: str, num_axes: int) -> Role:
    """The role of a parameter by its name. Experts that are stacked have an axis more than other matrices, and
    their biases than other biases: a bias is known by its name alone."""
    *above, last = name.split(".")
    if last == "bias" or (above[-1] == "experts" and last.startswith("b")):
        return "bias"
    if last == "sinks":
        return "sink"
    if num_axes == 1:
        return "norm"
    if "layers" not in above:
        return "head" if "lm_head" in above else "embedding"
    return "router" if above[-1] in ("gate", "router") else "matrix"


def rows_of_matrices(name: str, num_rows: int, latent: LatentAttention | None) -> tuple[int, ...]:
    """The rows of each matrix of a parameter, in their order: of latent attention the latent and the rotary key
    of all heads are made by one parameter, and keys and values of each head by another."""
    if latent is not None and name.endswith("kv_a_proj_with_mqa.weight"):
        return latent.kv_rank, latent.rope_dim
    if latent is not None and name.endswith("kv_b_proj.weight"):
        of_head = latent.nope_dim, latent.value_dim
        return of_head * (num_rows // sum(of_head))
    return (num_rows,)


def group_of(name: str, role: Role, groups: Sequence[OptimizerGroup]) -> OptimizerGroup | None:
    """The first group that matches a parameter."""
    return next((group for group in groups if group.match == role or fnmatchcase(name, group.match)), None)


def check_groups(groups: Sequence[OptimizerGroup], num_axes: Mapping[str, int]) -> None:
    """RecipeError for a group that no parameter of the whole model is in; `num_axes`: of each, by its
    name."""
    used = [group_of(name, role_of(name, axes), groups) for name, axes in num_axes.items()]
    for number, group in enumerate(groups):
        if not any(each is group for each in used):
            raise RecipeError(
                f'train.optimizer.group[{number}].match = "{group.match}": {_why_unused(group, num_axes)}',
                f"train.optimizer.group[{number}].match",
            )


def _why_unused(group: OptimizerGroup, num_axes: Mapping[str, int]) -> str:
    alone = (group,)
    matched = [name for name, axes in num_axes.items() if group_of(name, role_of(name, axes), alone)]
    if matched:
        return f"each parameter that it matches, {matched[0]} first, is in a group before it"
    if group.match == "head":
        return "the output matrix of this model is its embedding: match embedding"
    found = {role_of(name, axes) for name, axes in num_axes.items()}
    here = ", ".join(role for role in ROLES if role in found)
    example = next(iter(num_axes))
    return (
        f"no parameter of the model matches; expected one of {here}, or a pattern of names such as {example}"
    )
