"""How weights are updated: `[train.optimizer]`, its Muon and its groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lineage.recipe import RecipeError, key

Role = Literal["matrix", "embedding", "head", "norm", "bias", "router", "sink"]

_KELLER_JORDAN: Final = "Keller Jordan, Muon: kellerjordan.github.io/posts/muon"


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonTable:
    """`[train.optimizer.muon]`, read where `train.optimizer.name = "muon"`."""

    lr: float = key(0.02, above=0, help="peak learning rate of matrices inside layers", source=_KELLER_JORDAN)
    weight_decay: float = key(
        0.0,
        at_least=0,
        help="of these matrices: each step takes lr x weight_decay of a weight, without the factor by shape;"
        " 0.1 with match_rms_adamw",
        source=f"{_KELLER_JORDAN}; 0.1: 2502.16982",
    )
    momentum: float = key(
        0.95,
        at_least=0,
        at_most=0.9999999,
        help="share of the old momentum in the new: the rest is the gradient's",
        source=_KELLER_JORDAN,
    )
    nesterov: bool = key(
        True, help="orthogonalise the gradient's mean with the momentum", source=_KELLER_JORDAN
    )
    coefficients: Literal["quintic", "polar_express"] = key(
        "quintic",
        help="of the iteration: one triple for all rounds, or the best one for each",
        source=f"quintic: {_KELLER_JORDAN}; polar_express: 2505.16932",
    )
    iterations: int = key(5, at_least=1, at_most=99, help="rounds of it", source=_KELLER_JORDAN)
    rate_by_shape: Literal["original", "match_rms_adamw"] = key(
        "original",
        help="what multiplies the rate of a matrix of A rows and B columns: sqrt(max(1, A / B)), or"
        " 0.2 x sqrt(max(A, B)), with which a rate and a decay that suit AdamW suit Muon",
        source=f"original: {_KELLER_JORDAN}; match_rms_adamw: 2502.16982",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerGroup:
    """One `[[train.optimizer.group]]`. Of several groups that match a parameter the first counts."""

    match: str = key(
        help="matrix (inside layers), embedding, head, norm, bias, router or sink; or a pattern of"
        " parameters' names, as model.layers.*.mlp.*"
    )
    lr_factor: float = key(1.0, at_least=0, help="multiplies their learning rate")
    weight_decay: float | None = key(
        None, at_least=0, help="not given: that of the optimizer; norms, biases and sinks: 0"
    )

    def __post_init__(self) -> None:
        if self.lr_factor == 1.0 and self.weight_decay is None:
            raise RecipeError(
                f'train.optimizer.group: match = "{self.match}" changes nothing: expected lr_factor or'
                " weight_decay with it"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTable:
    """`[train.optimizer]`: what updates the weights, and the schedule of its learning rate."""

    name: Literal["adamw", "muon"] = key(
        "adamw",
        help="muon: matrices inside layers by Muon, each expert's by themselves; embedding, output matrix, norms,"
        " biases, routers and sinks by AdamW",
    )
    lr: float = key(3e-4, above=0, help="peak learning rate of AdamW")
    betas: tuple[float, float] = key(
        (0.9, 0.95), at_least=0, at_most=0.9999999, help="AdamW's betas, below 1"
    )
    weight_decay: float = key(0.1, at_least=0, help="of what AdamW updates; none on norms, biases and sinks")
    warmup_steps: int = key(100, at_least=0, help="steps of linear warm-up")
    schedule: Literal["cosine", "wsd", "linear"] = key(
        "cosine", help="from the warm-up to the last step: cosine; warm-up, stable, decay; or linear"
    )
    decay: Literal["linear", "sqrt", "cosine"] = key(
        "linear",
        help='shape of the decay of "wsd", by its progress x: 1 - x, 1 - sqrt(x) or (1 + cos(pi x)) / 2',
        source="2405.18392, section 4",
    )
    decay_share: float = key(
        0.2,
        above=0,
        at_most=1,
        help='share of the steps that "wsd" decays in',
        source="2405.18392, section 4",
    )
    min_lr_ratio: float = key(
        0.1, at_least=0, at_most=1, help="the last learning rate as a share of the peak"
    )
    clip: float = key(1.0, at_least=0, help="maximum gradient norm; 0: no clipping")
    ema: float = key(
        0.0,
        at_least=0,
        at_most=0.9999999,
        help="a moving average of the weights is kept with this share of the old in the new, for"
        " `--ema` of `sluice export`; 0: none",
    )
    muon: MuonTable = key(MuonTable())
    group: tuple[OptimizerGroup, ...] = key((), help="parameters with another rate or decay")

    def __post_init__(self) -> None:
        if self.name != "muon" and self.muon != MuonTable():
            raise RecipeError(
                f'train.optimizer.muon: expected train.optimizer.name = "muon" with it; "{self.name}" does not'
                " read it",
                "train.optimizer.muon",
            )
        for name, value, default in (
            ("decay", self.decay, "linear"),
            ("decay_share", self.decay_share, 0.2),
        ):
            if self.schedule != "wsd" and value != default:
                raise RecipeError(
                    f'train.optimizer.{name} = {value!r}: expected train.optimizer.schedule = "wsd" with it;'
                    f' "{self.schedule}" does not read it',
                    f"train.optimizer.{name}",
                )
