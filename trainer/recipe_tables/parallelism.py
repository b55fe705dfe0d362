"""How a model is computed by many processes: `[train.parallel]` to `[train.overlap]`, and the mesh that they
give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lineage.recipe import RecipeError, key

Schedule = Literal["1f1b", "interleaved", "interleaved_zero_bubble", "zbv", "dualpipev", "gpipe"]


def rank_of_stage(schedule: Schedule, stage: int, pp: int) -> int:
    """The pipeline rank that has a stage."""
    if schedule in ("zbv", "dualpipev"):  # V-shaped: the first rank has the first stage and the last
        return min(stage, 2 * pp - 1 - stage)
    return stage % pp


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelTable:
    """`[train.parallel]`: the device mesh. The product of the sizes is the number of processes."""

    dp_replicate: int | None = key(
        None,
        at_least=1,
        help="replicas of the model; not given: 1, or workers divided by the other sizes (zero = 0)",
    )
    dp_shard: int | None = key(
        None,
        at_least=1,
        help="processes that share one replica's parameters; not given: workers divided by the other sizes",
    )
    tp: int = key(1, at_least=1, help="tensor parallel")
    pp: int = key(1, at_least=1, help="pipeline parallel")
    cp: int = key(1, at_least=1, help="context parallel")
    ep: int = key(
        1, at_least=1, help="expert parallel: takes its processes from dp_shard x cp x tp, and divides it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable:
    """`[train.pipeline]`: how the stages of `train.parallel.pp` take turns."""

    schedule: Schedule = key(
        "1f1b", help="the order of forward and backward passes; zero-bubble ones split backward"
    )
    virtual_stages: int | None = key(
        None, at_least=1, help="stages of a rank; not given: 1 (1f1b, gpipe) or 2 (all others)"
    )
    first_stage_less_layers: int = key(
        0, at_least=0, help="number of layers fewer on the first stage, which has the embedding"
    )
    last_stage_less_layers: int = key(
        0, at_least=0, help="number of layers fewer on the last stage, which has the output matrix"
    )

    def __post_init__(self) -> None:
        num = self.num_virtual
        allowed = {"1f1b": num == 1, "gpipe": num == 1, "zbv": num == 2, "dualpipev": num == 2}
        if not allowed.get(self.schedule, num > 1):
            expected = {"1f1b": "1", "gpipe": "1", "zbv": "2", "dualpipev": "2"}.get(
                self.schedule, "at least 2"
            )
            raise RecipeError(
                f"train.pipeline.virtual_stages = {num}: expected {expected} with schedule ="
                f" {self.schedule!r}"
            )

    @property
    def num_virtual(self) -> int:
        """Stages of a rank."""
        return self.virtual_stages or (1 if self.schedule in ("1f1b", "gpipe") else 2)

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed apart from those of inputs."""
        return self.schedule in ("interleaved_zero_bubble", "zbv", "dualpipev")

    def fill_up(self, num_micro_batches: int, pp: int) -> int:
        """The least number of micro-batches, at least `num_micro_batches`, that the schedule takes over `pp`
        ranks."""
        if self.schedule == "1f1b":
            return max(num_micro_batches, pp)
        if self.schedule == "dualpipev":
            return max(num_micro_batches, 2 * pp)
        if self.schedule in ("interleaved", "interleaved_zero_bubble"):
            # They come in whole rounds of at least pp.
            while num_micro_batches % max(1, num_micro_batches // pp):
                num_micro_batches += 1
        return num_micro_batches

    def stage_layers(self, num_layers: int, pp: int) -> tuple[int, ...]:
        """Layers of each of the pp x num_virtual stages, in the model's order; RecipeError where one would
        have none.

        Each stage has an equal share of the layers and of those that the first and the last go without; the
        first stages have one more where it does not come out even. So a first stage may have the embedding
        alone, and a last one the output matrix (Llama 3, 2407.21783, section 3.3.2)."""
        num_stages = pp * self.num_virtual
        share, more = divmod(
            num_layers + self.first_stage_less_layers + self.last_stage_less_layers, num_stages
        )
        layers = [share + (stage < more) for stage in range(num_stages)]
        layers[0] -= self.first_stage_less_layers
        layers[-1] -= self.last_stage_less_layers
        if share < 1 or min(layers) < 0:
            raise RecipeError(
                f"train.parallel.pp = {pp}: with {self.num_virtual} a rank that is {num_stages} stages, of"
                f" which one would have none of the model's {num_layers} layers; expected fewer"
            )
        return tuple(layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTable:
    """`[train.context]`: how the processes of `train.parallel.cp` share a sequence."""

    method: Literal["gather", "ring"] = key(
        "gather",
        help="gather: each process gets the keys and values of the whole sequence; ring: they "
        "circulate in parts",
    )
    balance: Literal["zigzag", "documents", "none"] = key(
        "zigzag", help="zigzag: equal work without documents; documents: by each row's mask; none: in order"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsTable:
    """`[train.experts]`: how a mixture of experts is trained; nothing of it for other models."""

    capacity_factor: float = key(
        1.25,
        at_least=0,
        help="capacity of an expert, as a multiple of an even share of a sequence's choices; 0: dropless",
    )
    balance_loss: float = key(0.01, at_least=0, help="weight of the load-balancing loss, by sequence")
    z_loss: float = key(0.001, at_least=0, help="weight of the loss that keeps the router's logits small")
    bias_rate: float = key(
        0.0,
        at_least=0,
        help="step size of a load-balancing bias without a loss (2408.15664: 0.001); 0: no bias",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Table:
    """`[train.float8]`, read where `train.dtype = "float8"`."""

    recipe: Literal["rowwise", "tensorwise"] = key(
        "rowwise",
        help="one scale for each row, equal in every layout, or for each tensor, which depends on the layout",
    )
    emulate: bool = key(False, help="emulate float8 on hardware without it")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapTable:
    """`[train.overlap]`: communication beside computing, on GPUs alone."""

    prefetch_layers: int = key(
        1,
        at_least=1,
        help="layers whose sharded parameters are gathered ahead; each more takes a layer's memory (GPU)",
    )
    async_tp: bool = key(
        False,
        help="tensor parallel exchanges in pieces beside its products, with compile (GPU; torch's async TP)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The sizes of the device mesh, every one filled in."""

    dp_replicate: int
    dp_shard: int
    tp: int
    pp: int
    cp: int
    ep: int

    @property
    def num_workers(self) -> int:
        """Processes of the whole mesh; expert parallel takes its own from dp_shard x cp x tp."""
        return math.prod((self.dp_replicate, self.dp_shard, self.tp, self.pp, self.cp))

    @property
    def dp(self) -> int:
        """How many ways a global batch is sliced."""
        return self.dp_replicate * self.dp_shard

    @property
    def num_peers(self) -> int:
        """Processes that are given the same rows of a batch: one data parallel rank's."""
        return self.pp * self.cp * self.tp

    def same_work(self) -> list[list[int]]:
        """The ranks that do the same work in a step: those of each pipeline rank."""
        ranks = self.num_workers // self.pp
        return [list(range(first, first + ranks)) for first in range(0, self.num_workers, ranks)]

    def dp_rank(self, rank: int) -> int:
        """The data parallel rank of global rank `rank`. Ranks count, from the innermost dimension: tp, cp,
        dp_shard, dp_replicate, pp."""
        return rank // (self.tp * self.cp) % self.dp

    def replicas_of(self, rank: int, *, shards: bool) -> tuple[int, ...]:
        """The other ranks that hold the same pieces of weights and moments as global rank `rank`: those at
        its place in other replicas; without `shards` (zero = 0) dp_shard x cp are replicas too."""
        inner = self.tp if not shards else self.tp * self.cp * self.dp_shard
        stage = self.num_workers // self.pp
        first = rank // stage * stage
        return tuple(other for other in range(first + rank % inner, first + stage, inner) if other != rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesTable:
    """`[train.resources]`: what a process reserves on a Ray cluster, and where it may lie; nothing of it
    under torchrun."""

    cpus: float = key(1.0, at_least=0, help="processors that a worker reserves")
    gpus: int | None = key(
        None, at_least=0, help="GPUs that a worker reserves; not given: 1 if all can have one"
    )
    memory: int = key(0, at_least=0, help="bytes that a worker reserves (0: none)")
    resource: str = key("", help="a custom resource that its node must have, such as gpu_node")
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = key(
        "PACK",
        help="pack on few nodes or spread over many, if possible or strictly; tensor-parallel peers "
        "always share a node",
    )
    near: str = key(
        "",
        help="a node label such as topology.kubernetes.io/rack: ranks fill the nodes of one value, then of"
        " the next",
    )
