"""The table `[mix]`: the ablation that decides the weights of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lineage.recipe import RecipeError, key


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTable:
    """`mix.proxy`: what a proxy run changes of `[train]`; all else stays as the recipe has it."""

    model: str = key(
        "debug",
        is_path=True,
        help="as train.model; at least 15M parameters, so that results transfer (olmix)",
    )
    tokens: int = key(1_000_000, at_least=1, help="tokens of one proxy run, rounded up to whole steps")
    validation_tokens: int | None = key(
        None,
        at_least=1,
        help="maximum held-out tokens of each source for the loss of a run; not given: "
        "train.validation_tokens, or else as many in total as it trains on, with at least 4,096"
        " of each source",
    )
    lr: float | None = key(
        None, above=0, help="peak learning rate, best a small one; not given: train.optimizer.lr"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DoremiTable:
    """`mix.doremi`: the constants of 2305.10429, section 3.1."""

    step_size: float = key(1.0, above=0, help="how fast weights follow the excess loss")
    smoothing: float = key(
        1e-3, at_least=0, at_most=1, help="share of the uniform mixture added in each step"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixTable:
    """`[mix]`. Sources are those of `train.data`; one whose cap is 0 is only evaluated, never trained on."""

    runs: int = key(24, at_least=3, help="mixtures to fit on: corners, uniform, natural, then drawn ones")
    replicates: int = key(
        2, at_least=0, help="repeats of the natural mixture with other seeds: the noise floor"
    )
    held_out: int = key(4, at_least=0, help="further drawn mixtures that no model is fitted on")
    design: Literal["dirichlet", "simplex"] = key(
        "dirichlet", help="draw mixtures around the token prior (RegMix), or evenly over all mixtures"
    )
    caps: dict[str, float] = key({}, at_least=0, at_most=1, help="source = largest share; 0: only evaluated")
    floors: dict[str, float] = key({}, at_least=0, at_most=1, help="source = smallest share")
    proxy: ProxyTable = key(ProxyTable())
    targets: dict[str, float] = key(
        {}, at_least=0, help="source = weight of its validation loss; none: equal weights"
    )
    budget_tokens: int = key(
        0, at_least=0, help="tokens of the run to come; 0: steps x global_batch x seq_len"
    )
    max_epochs: float = key(
        4.0, above=0, help="maximum epochs of a source under the budget (2305.16264: 4 cost little)"
    )
    kl: float = key(
        0.01, at_least=0, help="nats of loss that one nat of divergence from the token prior costs"
    )

    doremi: DoremiTable = key(DoremiTable())

    def __post_init__(self) -> None:
        for source, floor in self.floors.items():
            if floor > self.caps.get(source, 1.0):
                raise RecipeError(
                    f"mix.floors.{source} = {floor}: expected at most its cap, {self.caps[source]}"
                )
        if self.targets and not any(self.targets.values()):
            raise RecipeError("mix.targets: every weight is 0, expected one above 0")
