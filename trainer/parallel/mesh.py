"""One model over a mesh of processes: (pp, dp_replicate, dp_shard, cp, tp).

    zero = 0          DistributedDataParallel; with tp, pp or experts, replicas on a mesh of fully_shard
    zero = 1          fully_shard that gathers parameters once a step and reduces gradients once
    zero = 2          fully_shard that keeps parameters gathered between forward and backward
    zero = 3          fully_shard; dp_replicate > 1 makes it HSDP
    tp > 1            tensor parallel with sequence parallel norms and a split vocabulary (tensor.py, model/loss.py)
    cp > 1            each row's positions shared among ranks, which share the weights' shards too (context.py)
    pp > 1            layers in stages (pipeline.py)

What the optimizer sees is a sum over the global batch: fully_shard sums over the ranks of each parameter's
own mesh, and where DDP averages, the loss is scaled by the number of its ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainer.model.attention import Kernel, document_masks, kernel_for
from trainer.model.config.description import ModelConfig
from trainer.model.experts import NUM_SUMS, ExpertLayer, Routing, balance_step
from trainer.model.loss import Losses
from trainer.model.peers import local_part
from trainer.model.rows import DeviceRows, MicroBatch
from trainer.model.transformer import CausalLM, Layer, LayerSpan
from trainer.optim.optimizer import clip_gradients
from trainer.parallel.context import ContextOptions, share_rows
from trainer.parallel.float8 import convert_to_float8
from trainer.parallel.groups import Groups, Meshes, make_groups, make_meshes
from trainer.parallel.layout import ParallelLayout
from trainer.parallel.pipeline import Pipeline, Stage, TiedEnds, spans, tied_ends
from trainer.parallel.recompute import RECOMPUTED_PREFIX, recomputed
from trainer.parallel.tensor import split_tensors
from trainer.recipe_tables.parallelism import rank_of_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedNorms:
    """The norms of gradients before they were clipped: `whole`, equal on every rank, and `local_layers`, this
    rank's part of the squared norms by layer, float64, in the order of `ParallelModel.layers`. Of the latter
    nothing is exchanged, so that they cost a step little; `ParallelModel.layer_norms` puts them together
    where they are wanted."""

    whole: Tensor
    local_layers: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """A model on its mesh, and what the step takes from it.

    `parts`: the model, wrapped, or this rank's stages of it. `tied`: where a tied embedding lies on two
    stages."""

    parts: tuple[nn.Module, ...]
    config: ModelConfig
    layout: ParallelLayout
    device: torch.device
    kernel: Kernel
    groups: Groups
    dp_rank: int
    pipeline: Pipeline | None = None
    tied: TiedEnds | None = None

    @property
    def dp_size(self) -> int:
        """How many ways a global batch is sliced."""
        return self.layout.mesh.dp

    @property
    def num_averaged(self) -> int:
        """By how much reduced gradients are divided: DDP averages over its ranks, fully_shard is made to
        sum."""
        return (
            self.layout.mesh.dp * self.layout.mesh.cp
            if isinstance(self.parts[0], DistributedDataParallel)
            else 1
        )

    @property
    def reduced_by_ddp(self) -> dist.ProcessGroup | None:
        """The group over which DDP sums gradients within backward, out of Python's sight; None where FSDP
        does it."""
        (module, *_) = self.parts
        return module.process_group if isinstance(module, DistributedDataParallel) else None

    @property
    def has_output(self) -> bool:
        """Whether losses are known on this rank."""
        return self.pipeline is None or self.pipeline.has_output

    def parameters(self) -> dict[str, nn.Parameter]:
        """This rank's parameters by the names of Hugging Face's models, whatever wraps them; a tied one
        once."""
        named: dict[str, nn.Parameter] = {}
        for part in self.parts:
            for name, parameter in part.named_parameters():
                plain = plain_name(name)
                # The last stage's copy of a tied embedding: one tensor of a checkpoint.
                plain = (
                    "model.embed_tokens.weight" if plain == "lm_head.weight" and self.config.tied else plain
                )
                named.setdefault(plain, parameter)
        return named

    def micro_batch(
        self, rows: DeviceRows, scale: Tensor | None = None, weights_B1: Tensor | None = None
    ) -> MicroBatch:
        """This rank's share of `rows`, which pipeline, context and tensor parallel peers are all given.
        `scale`: what a counted label's loss is multiplied with before backward, those of experts too (None:
        nothing is differentiated); `weights_B1`: by row, in its place but for experts."""
        group, table = self.groups.context, self.layout.context
        weights_B1 = scale if weights_B1 is None else weights_B1
        if group is None:
            places_T = torch.arange(rows.inputs_BT.shape[1], device=rows.inputs_BT.device)
            routing = self._routing(rows, places_T.expand_as(rows.inputs_BT), scale)
            masks = document_masks(rows.documents_BT, self.config.windows, self.kernel)
            return MicroBatch(rows=rows, masks=masks, weights_B1=weights_B1, routing=routing)
        options = ContextOptions(
            group=group, method=table.method, balance=table.balance, windows=self.config.windows
        )
        share = share_rows(rows, options, self.kernel)
        return MicroBatch(
            rows=share.rows,
            masks=share.masks,
            weights_B1=weights_B1,
            work=torch.stack([share.most_work, share.mean_work]),
            routing=self._routing(rows, share.places_BT, scale),
        )

    def _routing(self, rows: DeviceRows, places_BT: Tensor, scale: Tensor | None) -> Routing | None:
        """`rows` are whole; `places_BT` are those of this rank, which tensor parallel splits once more."""
        if self.config.experts is None:
            return None
        sizes = self.layout.mesh
        counted_B = rows.num_counted
        return Routing(
            places_BT=places_BT.chunk(sizes.tp, dim=1)[dist.get_rank() % sizes.tp],
            counted_B=counted_B,
            scale=torch.zeros((), device=self.device) if scale is None else scale,
            sequence=self.groups.sequence,
        )

    def expert_figures(self, routings: Sequence[Routing]) -> Tensor | None:
        """Of each layer the sums of `Routing.figures` over the micro-batches of a step and all ranks,
        float64; None without experts. Collective."""
        if self.config.experts is None:
            return None
        width = self.config.experts.num_experts + NUM_SUMS
        sums = torch.zeros(self.config.num_layers, width, dtype=torch.float64, device=self.device)
        for routing in routings:
            for number, figures in routing.figures.items():
                sums[number] += figures
        dist.all_reduce(sums)
        return sums

    def buffers(self) -> dict[str, Tensor]:
        """What training changes besides parameters, equal on every rank that has it: the biases of
        routers."""
        return {plain_name(name): buffer for part in self.parts for name, buffer in part.named_buffers()}

    @torch.no_grad()
    def balance_experts(self, figures: Tensor, verdict: Tensor) -> None:
        """After a step that counted, move the routers' biases against their load."""
        for name, bias_E in self.buffers().items():
            counts_E = figures[int(name.split(".")[2]), : len(bias_E)]
            step_E = balance_step(counts_E, self.layout.experts.bias_rate) * (verdict == 0)
            bias_E.add_(step_E.to(bias_E.dtype))

    def when_backward_ends(self, notify: Callable[[], None] | None) -> None:
        """Call `notify` once backward of the micro-batch that comes next has reached the embedding."""
        if self.pipeline is None:
            _causal_lm(self.parts[0]).model.when_backward_ends = notify

    def when_loss_begins(self, notify: Callable[[], None]) -> None:
        """Call `notify` in each forward pass that comes to the loss; a pipeline's stages do so themselves."""
        if self.pipeline is None:
            _causal_lm(self.parts[0]).when_loss_begins = notify

    def synchronise(self, last: bool) -> AbstractContextManager[None]:
        """Wraps forward and backward of a micro-batch; only the `last` one reduces over replicas.

        Sharded gradients are reduce-scattered each time: what ZeRO-2 and ZeRO-3 save would be lost otherwise.
        ZeRO-1 saves neither parameters nor gradients, so both stay whole until the last backward pass."""
        module = self.parts[0]
        if isinstance(module, DistributedDataParallel):
            return contextlib.nullcontext() if last else cast(Any, module.no_sync())
        sharded = cast(FSDPModule, module)
        sharded.set_requires_all_reduce(last)
        if self.layout.zero == 1:
            sharded.set_requires_gradient_sync(last)
            sharded.set_reshard_after_backward(last)
            sharded.set_is_last_backward(last)
        return contextlib.nullcontext()

    def forward(self, micro: MicroBatch) -> Losses:
        """The losses of a model without a pipeline."""
        assert self.pipeline is None, "Pipeline.step and evaluate run its stages"
        module = self.parts[0]
        casts = isinstance(module, DistributedDataParallel) and self.layout.dtype == torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=casts):
            rows, targets = micro.rows, micro.targets
            return cast(
                Losses, module(rows.inputs_BT, rows.positions_BT, micro.masks, micro.routing, targets)
            )

    def evaluate(self, micro: MicroBatch) -> Losses | None:
        """Losses as `forward`'s, without gradients, in every layout; None on other pipeline ranks. Collective."""
        with torch.no_grad():
            return self.forward(micro) if self.pipeline is None else self.pipeline.forward(micro)

    def reshard(self) -> None:
        """Give back what passes without a backward behind them have gathered: until then `parameters` would
        be those whole copies in the compute dtype, of which the optimizer knows nothing."""
        for part in self.parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def clip_gradients(self, clip: float) -> ClippedNorms:
        """Scale the whole model's gradients to a norm of at most `clip` (0: leave them); gives the norms
        before. Collective."""
        copies: tuple[nn.Parameter, ...] = ()
        if self.tied is not None:
            self.tied.sum_gradients()
            copies = self.tied.counted_elsewhere
        layers = self._local_layer_norms(copies)
        whole = clip_gradients(self.parameters().values(), clip, copies=copies, stages=self.groups.pipeline)
        return ClippedNorms(whole=whole, local_layers=layers)

    def layers(self) -> tuple[str, ...]:
        """What `layer_norms` tells apart: the embedding, each layer, the last norm, the output matrix if it
        is another one than the embedding."""
        layers = (f"layers.{number}" for number in range(self.config.num_layers))
        return ("embed_tokens", *layers, "norm", *(() if self.config.tied else ("lm_head",)))

    @torch.no_grad()
    def _local_layer_norms(self, elsewhere: Sequence[nn.Parameter]) -> Tensor:
        """This rank's part of the squared norms of the gradients by layer; those of `elsewhere` another rank
        counts."""
        numbers = {name: number for number, name in enumerate(self.layers())}
        sums = torch.zeros(len(numbers), dtype=torch.float64, device=self.device)
        places, shares, gradients = [], [], []
        for name, parameter in self.parameters().items():
            gradient = parameter.grad
            if gradient is None or any(parameter is copy for copy in elsewhere):
                continue
            places.append(numbers[layer_of(name)])
            shares.append(self._num_pieces(gradient) / self._num_holders)
            gradients.append(local_part(gradient))
        if gradients:
            norms = torch.stack([norm.to(torch.float64) for norm in torch._foreach_norm(gradients)])
            squares = norms.square() * self._sent(torch.tensor(shares, dtype=torch.float64))
            sums.index_add_(0, self._sent(torch.tensor(places)), squares)
        return sums

    def _sent(self, host: Tensor) -> Tensor:
        """Numbers of the host on the model's device. From pinned memory, since the host waits for all that a
        GPU has yet to do where it copies from other memory."""
        if self.device.type == "cpu":
            return host
        return host.pin_memory().to(self.device, non_blocking=True)

    def layer_norms(self, local: Tensor) -> dict[str, float]:
        """The norms of the gradients by layer, of the `local_layers` that each rank was given. Collective."""
        summed = local.clone()
        dist.all_reduce(summed)
        return dict(zip(self.layers(), summed.sqrt().tolist(), strict=True))

    @property
    def _num_holders(self) -> int:
        """How many ranks hold any piece of a parameter: those of its pipeline stage."""
        return self.layout.mesh.num_workers // self.layout.mesh.pp

    def _num_pieces(self, gradient: Tensor) -> int:
        """Into how many pieces a gradient is split; as many ranks as there are holders to a piece have the
        same."""
        if not isinstance(gradient, DTensor):
            return 1
        sizes = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
        return math.prod(size for placement, size in sizes if not placement.is_replicate())

    def weights_changed(self) -> None:
        """Call it after each change of weights from outside."""
        if self.tied is not None:
            self.tied.copy()


def layer_of(name: str) -> str:
    """What a parameter of that name is counted to: see `ParallelModel.layers`."""
    parts = name.removeprefix("model.").split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else parts[0]


def plain_name(name: str) -> str:
    """A parameter's name without the prefixes of wrappers."""
    return name.replace(RECOMPUTED_PREFIX, "").removeprefix("module.").removeprefix("causal_lm.")


def _causal_lm(part: nn.Module) -> CausalLM:
    """The model, or its span, without what wraps it."""
    return cast(CausalLM, getattr(part, "module", getattr(part, "causal_lm", part)))


def parallelise_model(
    config: ModelConfig, layout: ParallelLayout, device: torch.device, timeout: datetime.timedelta
) -> ParallelModel:
    """The model on its mesh, with memory but without weights (see `initialise`). Collective: every rank calls
    it.

    The default process group must exist and have the size of the mesh."""
    sizes, table = layout.mesh, layout.pipeline
    has_experts = config.experts is not None
    meshes = make_meshes(
        device.type, sizes, shards=layout.zero != 0, has_experts=has_experts, timeout=timeout
    )
    groups = make_groups(sizes, timeout)
    keep_kernels_same(device)
    build = partial(_part, _Build(config=config, layout=layout, meshes=meshes, device=device))
    whole = partial(
        ParallelModel,
        config=config,
        layout=layout,
        device=device,
        kernel=kernel_for(device, min(config.head_dim, config.value_dim)),
        groups=groups,
        dp_rank=sizes.dp_rank(dist.get_rank()),
    )
    if groups.pipeline is None:
        return whole(parts=(build(LayerSpan(first=0, end=config.num_layers), None),))
    every = spans(config.num_layers, sizes.pp, table)
    mine = [
        index
        for index in range(len(every))
        if rank_of_stage(table.schedule, index, sizes.pp) == groups.pipeline.rank()
    ]
    stages = [cast(Stage, build(every[index], index)) for index in mine]
    return whole(
        parts=tuple(stages),
        pipeline=Pipeline(stages, len(every), table, groups.pipeline, partial(_empty_stream, config, layout)),
        tied=tied_ends(stages, groups.ends) if config.tied else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Build:
    """What all parts of a model are built on."""

    config: ModelConfig
    layout: ParallelLayout
    meshes: Meshes
    device: torch.device


def keep_kernels_same(device: torch.device) -> None:
    """Have the compiler choose a GPU's kernels without timing them: which of two was faster differs from one
    start to the next, and so does the order in which they sum."""
    if device.type == "cuda":
        from torch import _inductor as inductor  # slow to import, and a run on a CPU may not need it

        inductor.config.deterministic = True


def _part(build: _Build, span: LayerSpan, stage: int | None) -> nn.Module:
    """A span of the model, split, recomputed, compiled and sharded as the layout says; `stage`: its
    number."""
    layout, meshes = build.layout, build.meshes
    tensor_mesh = meshes.dense["tp"] if layout.mesh.tp > 1 else None
    if layout.overlap.async_tp:
        from torch import _inductor as inductor  # slow to import, and used by nothing else here

        # The compiler reads it: a product then begins with the pieces of its operand that have come.
        inductor.config._micro_pipeline_tp = True
    with torch.device("meta"):
        causal_lm = CausalLM(build.config, span, layout.experts, z_loss=layout.z_loss).to(layout.weight_dtype)
    if layout.float8 is not None:
        convert_to_float8(causal_lm, layout.float8, layout.mesh.tp)
    if tensor_mesh is not None:
        split_tensors(causal_lm, tensor_mesh)
    layers = causal_lm.model.layers
    # A layer that is recomputed has its inputs again already, and a compiler decides for itself what it keeps.
    makes_again = (
        layout.gather_again and tensor_mesh is not None and layout.recompute == "none" and not layout.compile
    )
    causal_lm.model.makes_again = makes_again
    for name, layer in layers.items():
        moe = cast(Layer, layer).block_sparse_moe
        if meshes.experts is not None and layout.mesh.ep > 1 and moe is not None:
            moe.experts.spread(meshes.experts["ep"])
        cast(Layer, layer).makes_again = makes_again
        layers[name] = recomputed(cast(Layer, layer), layout.recompute)
        if layout.compile:
            layers[name].compile(backend=layout.compile_backend)
    root = causal_lm if stage is None else Stage(causal_lm, stage, tensor_mesh)
    return _data_parallel(root, causal_lm, build)


def _data_parallel(root: nn.Module, model: CausalLM, build: _Build) -> nn.Module:
    mesh, layout, device = build.meshes.dense, build.layout, build.device
    if layout.wraps_in_ddp and model.config.experts is None:
        root.to_empty(device=device)
        model.tie()  # moving from meta gave each module a parameter of its own
        group = mesh["dp_replicate"].get_group()
        return DistributedDataParallel(
            root, process_group=group, init_sync=False, gradient_as_bucket_view=True
        )
    replicated = mesh["dp_replicate"].size() > 1
    policy = MixedPrecisionPolicy(
        param_dtype=layout.dtype, reduce_dtype=layout.weight_dtype, cast_forward_inputs=False
    )
    shard = partial(
        fully_shard, mesh=mesh["dp_replicate", "fsdp"] if replicated else mesh["fsdp"], mp_policy=policy
    )
    # A pipeline keeps gradients whole within a step, and gathers parameters once in it.
    again = layout.zero == 3 and layout.mesh.pp == 1
    for layer in model.model.layers.values():
        if (moe := cast(Layer, layer).block_sparse_moe) is not None:
            _shard_experts(moe, build, policy, again=again)
        shard(layer, reshard_after_forward=again)
    span = model.span
    if not (model.config.tied and span.has_embedding and span.has_output):
        if span.has_embedding:
            shard(model.model.embed_tokens, reshard_after_forward=again)
        if span.has_output:
            # Backward begins with these two: gathered again at once, so resharding them saves nothing.
            shard([model.model.norm, model.lm_head], reshard_after_forward=False)
    shard(root, reshard_after_forward=again)
    _gather_ahead(
        [cast(FSDPModule, layer) for layer in model.model.layers.values()], layout.overlap.prefetch_layers
    )
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Sums, since the parameters of one layer may be shared by different numbers of ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    root.to_empty(device=device)
    return root


def _gather_ahead(layers: Sequence[FSDPModule], num: int) -> None:
    """Make each layer gather the parameters of the next `num` while it computes, and in backward of those
    before."""
    if num == 1:
        return  # what fully_shard does by itself
    for place, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(list(layers[place + 1 : place + 1 + num]))
        layer.set_modules_to_backward_prefetch(list(reversed(layers[max(place - num, 0) : place])))


def _shard_experts(experts: ExpertLayer, build: _Build, policy: MixedPrecisionPolicy, *, again: bool) -> None:
    """Every rank routes tokens of its own, tensor parallel peers too: so the router and what every token
    passes are shared by all ranks of a stage and replica, and each expert by those that have it."""
    meshes = build.meshes
    assert meshes.experts is not None
    assert meshes.whole is not None
    shared = () if experts.shared_expert is None else (experts.shared_expert,)
    # The router keeps the weights' dtype: rounding decides between experts.
    for module, mesh, kept in (
        (experts.gate, meshes.whole, dataclasses.replace(policy, param_dtype=None)),
        (experts.experts, meshes.experts, policy),
        *((module, meshes.whole, policy) for module in shared),
    ):
        fsdp = "expert_fsdp" if mesh is meshes.experts else "whole_fsdp"
        replicated = mesh["dp_replicate"].size() > 1
        over = mesh["dp_replicate", fsdp] if replicated else mesh[fsdp]
        fully_shard(module, mesh=over, mp_policy=kept, reshard_after_forward=again)


def _empty_stream(
    config: ModelConfig, layout: ParallelLayout, micro: MicroBatch, device: torch.device
) -> Tensor:
    """What passes between stages for this rank's share of rows: under tensor parallel its part of their
    positions."""
    num_rows, num_positions = micro.rows.inputs_BT.shape
    return torch.empty(
        num_rows, num_positions // layout.mesh.tp, config.width, dtype=layout.dtype, device=device
    )
