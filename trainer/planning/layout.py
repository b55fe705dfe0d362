"""What a plan is made for: a model over a mesh, and how one rank's slice of a batch is cut into
micro-batches."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from trainer.model.config.description import ModelConfig
from trainer.options import TrainTable
from trainer.parallel.checks import check_layout
from trainer.planning.counts import ParameterCounts, layer_counts, num_embedding_parameters
from trainer.recipe_tables.parallelism import ContextTable, Mesh, PipelineTable, rank_of_stage

LARGEST_MICRO_BATCH: Final = 8
"""Sequences of a forward pass where the recipe gives none, as the feed cuts them."""

Zero = Literal[3, 2, 1, 0]
Recompute = Literal["none", "selective", "full"]

_BYTES: Final = {
    "bf16": 2, "bfloat16": 2, "float8": 2, "fp32": 4, "float32": 4, "fp64": 8, "float64": 8, "auto": 2
}  # fmt: skip


class Part(NamedTuple):
    """What of a model lies on one pipeline stage, or on one rank: layers without and with experts, how many of
    both have a window, and either of the vocabulary matrices (1: it does)."""

    num_dense: int = 0
    num_sparse: int = 0
    num_windowed: int = 0
    embedding: int = 0
    head: int = 0

    @property
    def num_layers(self) -> int:
        """All its layers."""
        return self.num_dense + self.num_sparse


class ShardCounts(NamedTuple):
    """How many GPUs share one copy of each kind of `ParameterCounts` and of their moments."""

    split: int
    whole: int
    experts: int


def shards_of(zero: Zero, num_copies: int, tp: int, ep: int) -> ShardCounts:
    """The shards of a ZeRO level, where `num_copies` GPUs, dp_shard x cp of them, have the same split
    weights.

    What tensor peers have whole is sharded over them too, also for zero = 0 (trainer.parallel.groups,
    `make_meshes`)."""
    copies = 1 if zero == 0 else num_copies
    return ShardCounts(split=copies, whole=copies * tp, experts=copies * tp // ep)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSplit:
    """How a model's layers lie on pipeline stages and ranks. Stages are of few `kinds`: `counts` says how
    many are of each. `alike`: the ranks, those together whose stages are of the same kinds."""

    stages: tuple[Part, ...]
    ranks: tuple[Part, ...]
    rank_of_stage: tuple[int, ...]
    kinds: tuple[Part, ...]
    kind_of_stage: tuple[int, ...]
    counts: tuple[int, ...]
    alike: tuple[tuple[int, ...], ...]


class LayerKind(NamedTuple):
    """What of layers decides how long they take: whether they have experts, and how far back they see."""

    sparse: bool
    window: int | None

    def alone(self, config: ModelConfig) -> ModelConfig:
        """The model with a layer of this kind alone. How far positions turn takes no time."""
        experts = config.experts
        if experts is not None:
            experts = replace(experts, dense_layers=()) if self.sparse else None
        rule = next((rule for rule in config.rotary if rule is not None), None)
        return replace(config, num_layers=1, windows=(self.window,), rotary=(rule,), experts=experts)


class Kernels(NamedTuple):
    """What of a layout decides how long a layer's kernels take in a micro-batch of `tokens` positions."""

    config: ModelConfig
    tp: int
    cp: int
    ep: int
    tokens: float
    seq_len: int
    compute_bytes: int
    float8: bool
    compiled: bool

    def described(self, kind: LayerKind) -> str:
        """Equal for layers of this kind that take equally long, in models of any depth and mixture."""
        return repr(self._replace(config=kind.alone(self.config)))

    def kinds(self) -> list[LayerKind]:
        """Those of the model's layers, each once."""
        config = self.config
        every = (
            LayerKind(config.has_experts(layer), self.acting(config.window_of(layer)))
            for layer in range(config.num_layers)
        )
        return list(dict.fromkeys(every))

    def acting(self, window: int | None) -> int | None:
        """None for a window that reaches as far as a row."""
        return window if window is not None and window < self.seq_len else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayout:
    """`compute_bytes` of a number in forward and backward, `weight_bytes` of a weight, a gradient or a
    moment. `muon_rounds`: of the iteration that makes the momenta of matrices orthogonal; 0: AdamW has all;
    `averages`: weights have an average beside them."""

    config: ModelConfig
    mesh: Mesh
    pipeline: PipelineTable = field(default_factory=PipelineTable)
    context: ContextTable = field(default_factory=ContextTable)
    zero: Zero
    recompute: Recompute
    gather_again: bool = True
    float8: bool = False
    compute_bytes: int
    weight_bytes: int
    seq_len: int
    global_batch: int
    micro_batch: int
    num_micro_batches: int
    prefetch_layers: int = 1
    async_tp: bool = False
    compiled: bool = False
    muon_rounds: int = 0
    averages: bool = False

    @property
    def kernels(self) -> Kernels:
        """What `trainer.planning.products` times."""
        mesh = self.mesh
        return Kernels(
            config=self.config,
            tp=mesh.tp,
            cp=mesh.cp,
            ep=mesh.ep,
            tokens=self.mean_tokens,
            seq_len=self.seq_len,
            compute_bytes=self.compute_bytes,
            float8=self.float8,
            compiled=self.compiled,
        )

    @property
    def shards(self) -> ShardCounts:
        """How many GPUs share a copy of what."""
        mesh = self.mesh
        return shards_of(self.zero, mesh.dp_shard * mesh.cp, mesh.tp, mesh.ep)

    @property
    def replicated_by_ddp(self) -> bool:
        """Whether DistributedDataParallel under autocast wraps the model, and not fully_shard."""
        return self.zero == 0 and self.mesh.tp == 1 and self.mesh.pp == 1 and self.config.experts is None

    @property
    def synchronises_once(self) -> bool:
        """Whether weights are gathered and gradients reduced once a step, and whole in between: zero = 1 asks
        for it, torch's pipelines do it (torch.distributed.pipelining.stage, `backward_maybe_with_nosync`);
        other layouts reduce for each micro-batch."""
        return self.mesh.pp > 1 or self.zero == 1

    @property
    def makes_again(self) -> bool:
        """Whether backward makes the inputs of products again (trainer.model.transformer, `Layer`)."""
        return self.gather_again and self.mesh.tp > 1 and self.recompute == "none" and not self.compiled

    @property
    def tensor_rounds(self) -> float:
        """How often a layer's gathers and scatters of forward are done in a step's passes: forward, as many
        backward; there the gathers again where inputs are made again, for each half of a backward pass that
        is split; or all but the last scatter where the layer is computed again."""
        if self.recompute != "none":
            return 2.75
        if not self.makes_again:
            return 2.0
        return 3.0 if self.mesh.pp > 1 and self.pipeline.splits_backward else 2.5

    @property
    def split(self) -> LayerSplit:
        """How the layers lie on stages and ranks."""
        return layer_split(self.config, self.mesh.pp, self.pipeline)

    @property
    def ranks(self) -> tuple[Part, ...]:
        """What each pipeline rank has."""
        return self.split.ranks

    @property
    def largest(self) -> Part:
        """What the pipeline rank with the most parameters has."""
        return max(self.ranks, key=lambda part: sum(part_counts(self.config, part)))

    @property
    def num_rows(self) -> int:
        """Sequences of a data parallel rank in a step; where they do not come out even, fewer are filled
        up."""
        return -(-self.global_batch // self.mesh.dp)

    @property
    def tokens(self) -> int:
        """Positions of a full micro-batch on one GPU, before tensor parallel splits anything."""
        return self.micro_batch * self.seq_len // self.mesh.cp

    @property
    def mean_tokens(self) -> float:
        """Those of a micro-batch in the mean of a step: a pipeline fills the last one up, else it may be
        short."""
        if self.mesh.pp > 1:
            return self.tokens
        return self.num_rows * self.seq_len / self.mesh.cp / self.num_micro_batches


@functools.lru_cache(maxsize=4096)
def part_counts(config: ModelConfig, part: Part) -> ParameterCounts:
    """Parameters of a part of a model."""
    matrices = part.embedding + part.head
    if matrices == 2 and config.tied:
        matrices = 1
    ends = matrices * num_embedding_parameters(config) + part.head * config.width
    dense, sparse = (layer_counts(config, sparse=sparse) for sparse in (False, True))
    return ParameterCounts(
        split=ends + part.num_dense * dense.split + part.num_sparse * sparse.split,
        whole=part.num_sparse * sparse.whole,
        experts=part.num_sparse * sparse.experts,
    )


@functools.lru_cache(maxsize=4096)
def layer_split(config: ModelConfig, pp: int, pipeline: PipelineTable) -> LayerSplit:
    """How a model's layers lie on the stages of `pp` ranks."""
    num_layers = config.num_layers
    sizes = (num_layers,) if pp == 1 else pipeline.stage_layers(num_layers, pp)
    homes = [0 if pp == 1 else rank_of_stage(pipeline.schedule, stage, pp) for stage in range(len(sizes))]
    stages, first = [], 0
    for stage, size in enumerate(sizes):
        layers = range(first, first + size)
        dense = sum(not config.has_experts(layer) for layer in layers)
        windowed = sum(config.window_of(layer) is not None for layer in layers)
        first += size
        stages.append(Part(dense, size - dense, windowed, int(stage == 0), int(stage == len(sizes) - 1)))
    kinds = tuple(dict.fromkeys(stages))
    kind_of_stage = tuple(kinds.index(part) for part in stages)
    alike: dict[tuple[int, ...], list[int]] = {}
    for rank in range(pp):
        kinds_of_rank = tuple(kind for kind, home in zip(kind_of_stage, homes, strict=True) if home == rank)
        alike.setdefault(kinds_of_rank, []).append(rank)
    return LayerSplit(
        stages=tuple(stages),
        ranks=tuple(
            Part(*map(sum, zip(*(stages[i] for i, home in enumerate(homes) if home == rank), strict=True)))
            for rank in range(pp)
        ),
        rank_of_stage=tuple(homes),
        kinds=kinds,
        kind_of_stage=kind_of_stage,
        counts=tuple(kind_of_stage.count(kind) for kind in range(len(kinds))),
        alike=tuple(map(tuple, alike.values())),
    )


def planned_layout(table: TrainTable, config: ModelConfig) -> PlannedLayout:
    """The layout of a recipe; RecipeError where this model cannot be spread so."""
    check_layout(table, config)
    mesh = table.mesh
    slice_size = -(-table.global_batch // mesh.dp)
    micro_batch = min(table.micro_batch or LARGEST_MICRO_BATCH, slice_size)
    compute_bytes = _BYTES[table.dtype]
    return PlannedLayout(
        config=config,
        mesh=mesh,
        pipeline=table.pipeline,
        context=table.context,
        zero=table.zero,
        recompute=table.activation_checkpointing,
        gather_again=table.gather_again,
        float8=table.dtype == "float8",
        compute_bytes=compute_bytes,
        weight_bytes=max(compute_bytes, 4),
        seq_len=table.seq_len,
        global_batch=table.global_batch,
        micro_batch=micro_batch,
        num_micro_batches=micro_batches(table.pipeline, mesh.pp, -(-slice_size // micro_batch)),
        prefetch_layers=table.overlap.prefetch_layers,
        async_tp=table.overlap.async_tp,
        compiled=table.compile,
        muon_rounds=table.optimizer.muon.iterations if table.optimizer.name == "muon" else 0,
        averages=table.optimizer.ema > 0,
    )


def micro_batches(pipeline: PipelineTable, pp: int, num: int) -> int:
    """The micro-batches of a step where a rank's sequences make `num`: a pipeline's schedule may need
    more."""
    return pipeline.fill_up(num, pp) if pp > 1 else num
