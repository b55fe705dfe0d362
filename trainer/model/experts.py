"""Mixture of experts: a router sends each token to a few feed-forward parts; what it decides does not depend on
the layout.

Names are those of Mixtral (2401.04088). Whatever is counted (an expert's capacity, its share in the balance
loss) is counted over one sequence, as GShard's groups (2006.16668, section 2.2) and DeepSeek's sequence-wise
balance loss (2412.19437, section 2.1.2) are. A micro-batch would do for less padding, but which sequences
share one hangs on the number of data parallel ranks and on `micro_batch`; a sequence is the same in every
layout.

Axes: B rows, T positions, D width, F an expert's inner width, E experts, J a token's choices, N rows of
tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional as F

from trainer.model.config.description import Experts as ExpertSizes
from trainer.model.config.description import Gate, ModelConfig
from trainer.model.feed_forward import FeedForward, opened, raised
from trainer.model.peers import gathered, local_part
from trainer.recipe_tables.parallelism import ExpertsTable

_ALIGNMENT: Final = 16
"""Bytes that the strides of a grouped product's matrices must be multiples of."""
_NEVER_NOTHING: Final = 1e-20
"""Added to sums of scores that may all have come to 0."""
NUM_SUMS: Final = 5
"""Numbers of a layer's figures beside the tokens of each expert: see `Routing.figures`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What the routers need to know of a micro-batch, and what they leave.

    `places_BT`: the place of each of this rank's positions in its row; `counted_B`: the counted labels of
    each whole row; `scale`: what one label's share of the objective is worth in backward (0: nothing is added
    to it); `sequence`: the ranks that share a row's positions (None: this one alone). `figures`: of each
    layer, by its number, how many of this rank's tokens chose each expert, then how many choices were
    dropped, and the sums over tokens of the router's entropy, of the balance loss and of the z-loss, and the
    number of tokens: rows that only fill up count nowhere. A layer that is computed again writes the same
    numbers again."""

    places_BT: Tensor
    counted_B: Tensor
    scale: Tensor
    sequence: dist.ProcessGroup | None
    figures: dict[int, Tensor] = field(default_factory=dict)


class ExpertLayer(nn.Module):
    """In place of a layer's feed-forward part: a router, its experts, and what every token passes besides."""

    bias: Tensor

    def __init__(self, number: int, config: ModelConfig, table: ExpertsTable) -> None:
        super().__init__()
        assert config.experts is not None
        self.number, self.sizes, self.table = number, config.experts, table
        sizes, width = self.sizes, config.width
        self.gate = Router(width, sizes.num_experts, has_bias=sizes.router.bias)
        self.experts = StackedExperts(width, sizes, config.gate)
        shared = sizes.hidden * sizes.num_shared
        self.shared_expert = FeedForward(width, shared, config.gate) if shared else None
        self.is_corrected = table.bias_rate > 0 or sizes.router.corrected
        if self.is_corrected:
            self.register_buffer("bias", torch.zeros(sizes.num_experts))

    def forward(self, x_BTD: Tensor, routing: Routing) -> Tensor:
        if isinstance(x_BTD, DTensor):  # split by position: each tensor parallel rank routes its own
            mixed = self._mix(x_BTD.to_local(grad_placements=[Shard(1)]), routing)
            return DTensor.from_local(mixed, x_BTD.device_mesh, [Shard(1)], run_check=False)
        return self._mix(x_BTD, routing)

    def _mix(self, x_BTD: Tensor, routing: Routing) -> Tensor:
        places_BT = routing.places_BT
        logits_BTE = self.gate(x_BTD)
        scores_BTE, shares_BTE = self._scores(logits_BTE)
        chosen_BTJ = self._wanted(scores_BTE.detach()).topk(self.sizes.top_k, dim=-1).indices
        gates_BTJ = self._gates(scores_BTE.gather(-1, chosen_BTJ))
        whole = WholeRows.of(chosen_BTJ, places_BT, self.sizes.num_experts, routing.sequence)
        kept_BTJ = whole.kept(places_BT, self.table.capacity_factor)
        balance_BT, z_BT = self._losses(logits_BTE, shares_BTE, whole)
        weight_B = routing.counted_B.to(balance_BT.dtype)
        added = self.table.balance_loss * balance_BT + self.table.z_loss * z_BT
        with torch.no_grad():
            routing.figures[self.number] = _figures(
                shares_BTE, chosen_BTJ, kept_BTJ, (balance_BT, z_BT), routing.counted_B > 0
            )
        # Its gradient is added where backward passes anyhow, so it needs no way to the last stage of a
        # pipeline.
        added_loss = (added.sum(-1) * weight_B).sum() * routing.scale / whole.length
        x_BTD = cast(Tensor, _AddLoss.apply(x_BTD, added_loss))  # type: ignore[no-untyped-call]
        x_ND, chosen_NJ, kept_NJ, gates_NJ = (
            t.flatten(0, 1) for t in (x_BTD, chosen_BTJ, kept_BTJ, gates_BTJ)
        )
        mixed_BTD = dispatch(x_ND, chosen_NJ, kept_NJ, gates_NJ, self.experts).view_as(x_BTD)
        return mixed_BTD if self.shared_expert is None else mixed_BTD + self.shared_expert(x_BTD)

    def _scores(self, logits_BTE: Tensor) -> tuple[Tensor, Tensor]:
        """What is chosen by and weighted with, and each expert's share of a token, which sum to 1."""
        if self.sizes.router.score == "sigmoid":
            scores_BTE = logits_BTE.sigmoid()
            return scores_BTE, scores_BTE / (scores_BTE.sum(-1, keepdim=True) + _NEVER_NOTHING)
        shares_BTE = logits_BTE.softmax(-1)
        return (shares_BTE if self.sizes.router.score == "softmax" else logits_BTE), shares_BTE

    def _wanted(self, scores_BTE: Tensor) -> Tensor:
        """The numbers whose greatest are chosen: with the bias, and of the best groups alone."""
        sizes = self.sizes
        wanted_BTE = scores_BTE + self.bias if self.is_corrected else scores_BTE
        if sizes.num_groups == 1:
            return wanted_BTE
        # A group is as good as the two best of its experts (2412.19437, section 2.1.2, as it was published).
        of_group_BTGE = wanted_BTE.view(*wanted_BTE.shape[:-1], sizes.num_groups, -1)
        best_BTG = of_group_BTGE.topk(2, dim=-1).values.sum(-1).topk(sizes.top_groups, dim=-1).indices
        open_BTG = torch.zeros(of_group_BTGE.shape[:-1], dtype=torch.bool, device=wanted_BTE.device)
        open_BTG.scatter_(-1, best_BTG, True)
        return of_group_BTGE.masked_fill(~open_BTG[..., None], -math.inf).flatten(-2)

    def _gates(self, chosen_BTJ: Tensor) -> Tensor:
        """The weights of chosen experts, from their scores."""
        router = self.sizes.router
        if router.score == "softmax of chosen":
            return chosen_BTJ.softmax(-1) * router.scale
        if router.normalised:
            chosen_BTJ = chosen_BTJ / (chosen_BTJ.sum(-1, keepdim=True) + _NEVER_NOTHING)
        return chosen_BTJ * router.scale

    def _losses(self, logits_BTE: Tensor, shares_BTE: Tensor, whole: WholeRows) -> tuple[Tensor, Tensor]:
        """Each token's share of the balance loss E·Σ f·P of its row (Fedus et al., 2101.03961, equation 4,
        over all choices) and of the z-loss (Zoph et al., 2202.08906, equation 5), both times the row's
        length."""
        frequency_BE = whole.counts_BE.to(shares_BTE.dtype) / (whole.length * self.sizes.top_k)
        balance_BT = self.sizes.num_experts * (shares_BTE * frequency_BE[:, None]).sum(-1)
        return balance_BT, logits_BTE.logsumexp(-1).square()


class Router(nn.Module):
    """Logits of each expert. Computed in float32 or wider: rounding decides between experts."""

    def __init__(self, width: int, num_experts: int, *, has_bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, width))
        self.bias = nn.Parameter(torch.empty(num_experts)) if has_bias else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        return F.linear(x_BTD.to(wide), self.weight.to(wide), bias)


class StackedExperts(nn.Module):
    """The experts of one layer, their matrices stacked: w1 (gate) and w3 (up) are (E, F, D), w2 (down) is (E,
    D, F); their biases b1, b3 and b2."""

    def __init__(self, width: int, sizes: ExpertSizes, gate: Gate) -> None:
        super().__init__()
        self.num_experts, self.gate = sizes.num_experts, gate
        self.w1 = nn.Parameter(torch.empty(sizes.num_experts, sizes.hidden, width))
        self.w2 = nn.Parameter(torch.empty(sizes.num_experts, width, sizes.hidden))
        self.w3 = nn.Parameter(torch.empty(sizes.num_experts, sizes.hidden, width))
        outputs = (("b1", sizes.hidden), ("b2", width), ("b3", sizes.hidden))
        for name, size in outputs if sizes.biases else ():
            self.register_parameter(name, nn.Parameter(torch.empty(sizes.num_experts, size)))
        self.group: dist.ProcessGroup | None = None

    def spread(self, mesh: DeviceMesh) -> None:
        """Give each rank of `mesh` an equal share of the experts: tokens then travel to them and back."""
        for name, parameter in list(self.named_parameters(recurse=False)):
            spread = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=None)
            setattr(self, name, nn.Parameter(spread))
        self.group = mesh.get_group()

    def forward(self, x_ND: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs of tokens in the order of their experts; `counts_E` says how many each expert has."""
        held = {name: local_part(one).to(x_ND.dtype) for name, one in self.named_parameters(recurse=False)}
        aligned = all(size * x_ND.element_size() % _ALIGNMENT == 0 for size in held["w1"].shape[1:])
        if aligned and x_ND.dtype != torch.float64 and len(x_ND):
            ends_E = counts_E.cumsum(0).to(torch.int32)

            def product(rows: Tensor, number: str) -> Tensor:
                done = F.grouped_mm(rows, held[f"w{number}"].mT, offs=ends_E)
                bias = held.get(f"b{number}")
                return done if bias is None else done + bias.repeat_interleave(counts_E, dim=0)

            return self._through(x_ND, product)
        parts = torch.split(x_ND, counts_E.tolist())
        each = zip(parts, *(one.unbind() for one in held.values()), strict=True)
        return torch.cat([self._of_one(part, dict(zip(held, of_one, strict=True))) for part, *of_one in each])

    def _of_one(self, x_ND: Tensor, held: Mapping[str, Tensor]) -> Tensor:
        return self._through(
            x_ND, lambda rows, number: F.linear(rows, held[f"w{number}"], held.get(f"b{number}"))
        )

    def _through(self, x_ND: Tensor, product: Callable[[Tensor, str], Tensor]) -> Tensor:
        inner_NF = opened(self.gate, product(x_ND, "1")) * raised(self.gate, product(x_ND, "3"))
        return product(inner_NF, "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRows:
    """The choices of whole rows, also where several ranks share their positions. `chosen_BTJ`: in the order
    of the rows' places; `counts_BE`: how often each expert was chosen; `length`: positions of a row."""

    chosen_BTJ: Tensor
    counts_BE: Tensor
    length: int

    @staticmethod
    def of(
        chosen_BTJ: Tensor, places_BT: Tensor, num_experts: int, sequence: dist.ProcessGroup | None
    ) -> WholeRows:
        """Collective over `sequence`."""
        if sequence is not None:
            mine = torch.cat((chosen_BTJ, places_BT[..., None]), dim=-1)
            every = torch.cat(gathered(mine, sequence), dim=1)
            order = every[..., -1].argsort(dim=1)
            chosen_BTJ = every[..., :-1].gather(1, order[..., None].expand_as(every[..., :-1]))
        flat_BN = chosen_BTJ.flatten(1)
        counts_BE = flat_BN.new_zeros(len(flat_BN), num_experts)
        counts_BE.scatter_add_(1, flat_BN, torch.ones_like(flat_BN))
        return WholeRows(chosen_BTJ=chosen_BTJ, counts_BE=counts_BE, length=chosen_BTJ.shape[1])

    def kept(self, places_BT: Tensor, capacity_factor: float) -> Tensor:
        """Which choices of the positions at `places_BT` an expert has room for, bool (B, T, J). In each row
        the first positions come first, and of one position its dearest expert; a factor of 0 keeps all."""
        num_choices = self.chosen_BTJ.shape[-1]
        if capacity_factor == 0:
            return torch.ones(*places_BT.shape, num_choices, dtype=torch.bool, device=places_BT.device)
        flat_BN = self.chosen_BTJ.flatten(1)
        room = math.ceil(capacity_factor * flat_BN.shape[1] / self.counts_BE.shape[1])
        by_expert = flat_BN.argsort(dim=1, stable=True)
        first_BE = self.counts_BE.cumsum(1) - self.counts_BE
        at_BN = torch.arange(flat_BN.shape[1], device=flat_BN.device).expand_as(flat_BN)
        turn_BN = torch.empty_like(flat_BN)
        turn_BN.scatter_(1, by_expert, at_BN - first_BE.gather(1, flat_BN.gather(1, by_expert)))
        kept_BTJ = (turn_BN < room).view_as(self.chosen_BTJ)
        return kept_BTJ.gather(1, places_BT[..., None].expand(*places_BT.shape, num_choices))


def dispatch(
    x_ND: Tensor, chosen_NJ: Tensor, kept_NJ: Tensor, gates_NJ: Tensor, experts: StackedExperts
) -> Tensor:
    """Each token's sum over its kept choices of gate times expert, shape (N, D). Collective over the experts'
    ranks."""
    num_choices = chosen_NJ.shape[1]
    kept = kept_NJ.flatten().nonzero().flatten()
    kept = kept[chosen_NJ.flatten()[kept].argsort(stable=True)]
    counts_E = torch.bincount(chosen_NJ.flatten()[kept], minlength=experts.num_experts)
    tokens, group = kept // num_choices, experts.group
    sent = x_ND[tokens]
    came = experts(sent, counts_E) if group is None else _travel(sent, counts_E, experts, group)
    weighted = came * gates_NJ.flatten()[kept, None].to(came.dtype)
    return torch.zeros_like(x_ND).index_add(0, tokens, weighted)


def _travel(sent_ND: Tensor, counts_E: Tensor, experts: StackedExperts, group: dist.ProcessGroup) -> Tensor:
    """Outputs of tokens, in the order of their experts, that other ranks of `group` have shares of."""
    of_ranks = counts_E.view(group.size(), -1)
    counts_RE = torch.empty_like(of_ranks)  # of each sending rank, for each expert here
    dist.all_to_all_single(counts_RE, of_ranks, group=group)
    leaving, coming = of_ranks.sum(1).tolist(), counts_RE.sum(1).tolist()
    came = cast(Tensor, _AllToAll.apply(sent_ND, coming, leaving, group))  # type: ignore[no-untyped-call]
    # They lie by sender, and by expert within one: experts take them by expert.
    expert_of = torch.arange(counts_RE.shape[1], device=came.device).repeat(group.size())
    by_expert = expert_of.repeat_interleave(counts_RE.flatten()).argsort(stable=True)
    done = experts(came[by_expert], counts_RE.sum(0))
    back = torch.zeros_like(done).index_copy(0, by_expert, done)
    return cast(Tensor, _AllToAll.apply(back, leaving, coming, group))  # type: ignore[no-untyped-call]


class _AllToAll(torch.autograd.Function):
    """Rows to the ranks of a group and from them; backward the other way."""

    @staticmethod
    def forward(
        context: Any, rows: Tensor, coming: list[int], leaving: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        context.arguments = coming, leaving, group
        came = rows.new_empty((sum(coming), *rows.shape[1:]))
        dist.all_to_all_single(came, rows.contiguous(), coming, leaving, group=group)
        return came

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        coming, leaving, group = context.arguments
        (gradient,) = gradients
        back = gradient.new_empty((sum(leaving), *gradient.shape[1:]))
        dist.all_to_all_single(back, gradient.contiguous(), leaving, coming, group=group)
        return back, None, None, None


class _AddLoss(torch.autograd.Function):
    """Gives `x` back; backward also differentiates `loss`, as if it were part of the objective."""

    @staticmethod
    def forward(context: Any, x: Tensor, loss: Tensor) -> Tensor:
        context.like = loss.detach()
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(context.like)


def _figures(
    shares_BTE: Tensor,
    chosen_BTJ: Tensor,
    kept_BTJ: Tensor,
    losses_BT: tuple[Tensor, Tensor],
    counted_B: Tensor,
) -> Tensor:
    """`Routing.figures` of one layer, float64 (E + NUM_SUMS)."""
    real_BT = counted_B[:, None].expand(chosen_BTJ.shape[:2])
    chosen = chosen_BTJ[real_BT].flatten()
    summed = torch.special.entr(shares_BTE).sum(-1), *losses_BT
    sums = [(~kept_BTJ[real_BT]).sum(), *(each_BT[real_BT].sum() for each_BT in summed), real_BT.sum()]
    counts_E = torch.bincount(chosen, minlength=shares_BTE.shape[-1])
    return torch.cat([counts_E.double(), torch.stack([number.double() for number in sums])])


def balance_step(counts_E: Tensor, rate: float) -> Tensor:
    """What to add to the biases of one layer's router after a batch that sent so many tokens to each expert
    (Wang et al., 2408.15664, algorithm 1): experts with less than the mean are chosen more often. It sums to
    0."""
    step = rate * torch.sign(counts_E.mean() - counts_E)
    return step - step.mean()


def load_figures(figures_LF: Tensor) -> Tensor:
    """The numbers of a report's ExpertLoad, in its order, from the layers' sums of `Routing.figures`."""
    counts_LE, sums = figures_LF[:, :-NUM_SUMS], figures_LF[:, -NUM_SUMS:].sum(0)
    fullest = (counts_LE.amax(1) / counts_LE.mean(1).clamp_min(1)).amax()
    dropped, (entropy, balance, z) = sums[0] / counts_LE.sum().clamp_min(1), sums[1:4] / sums[4].clamp_min(1)
    return torch.stack([fullest, dropped, entropy, balance, z])
