"""The training recipe: the tables `[run]`, `[train]`, `[plan]`, `[mix]` and `[ray]` as the trainer reads them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from lineage.recipe import RecipeError, key

_NEEDS: Final = {
    "mxfp8": "it needs a B200 (compute capability 10.0) and torchao's kernels for it, which are not built here",
    "nvfp4": "it needs a Blackwell GPU, sides of multiples of 128 and torchao's prototype, which is not used here",
}
"""Of number formats that are known and not trained in."""

Schedule = Literal["1f1b", "interleaved", "interleaved_zero_bubble", "zbv", "dualpipev", "gpipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRunTable:
    """`[run]` of a training recipe: no output here, that is `train.output`."""

    name: str = key(help="what lineage calls this run; the same name with another output is an error")
    seed: int = key(0, at_least=0, help="seeds the order and the initial weights unless train.seed is given")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """One entry of `train.data` where a run reads several outputs."""

    out: str = key(help="the output folder or URL of a data run")
    prefix: str = key("", help="put before the names of its sources, so that two outputs may share a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelTable:
    """`[train.parallel]`: the device mesh. The product of the sizes is the number of processes."""

    dp_replicate: int | None = key(
        None, at_least=1, help="replicas of the model; not given: 1, or what workers leave (zero = 0)"
    )
    dp_shard: int | None = key(
        None, at_least=1, help="processes that share one replica's parameters; not given: what workers leave"
    )
    tp: int = key(1, at_least=1, help="tensor parallel")
    pp: int = key(1, at_least=1, help="pipeline parallel")
    cp: int = key(1, at_least=1, help="context parallel")
    ep: int = key(1, at_least=1, help="expert parallel: takes its processes from dp_shard x cp x tp, and divides it")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable:
    """`[train.pipeline]`: how the stages of `train.parallel.pp` take turns."""

    schedule: Schedule = key("1f1b", help="the order of forward and backward passes; zero-bubble ones split backward")
    virtual_stages: int | None = key(
        None, at_least=1, help="stages of a rank; not given: 1 (1f1b, gpipe) or 2 (all others)"
    )
    first_stage_less_layers: int = key(0, at_least=0, help="layers that the first stage has less: it has the embedding")
    last_stage_less_layers: int = key(0, at_least=0, help="layers that the last stage has less: it has the output")

    def __post_init__(self) -> None:
        num = self.num_virtual
        allowed = {"1f1b": num == 1, "gpipe": num == 1, "zbv": num == 2, "dualpipev": num == 2}
        if not allowed.get(self.schedule, num > 1):
            expected = {"1f1b": "1", "gpipe": "1", "zbv": "2", "dualpipev": "2"}.get(self.schedule, "at least 2")
            raise RecipeError(
                f"train.pipeline.virtual_stages = {num}: expected {expected} with schedule = {self.schedule!r}"
            )

    @property
    def num_virtual(self) -> int:
        """Stages of a rank."""
        return self.virtual_stages or (1 if self.schedule in ("1f1b", "gpipe") else 2)

    @property
    def is_v(self) -> bool:
        """Whether a rank's two stages lie symmetrically, so that the first rank has the last stage too."""
        return self.schedule in ("zbv", "dualpipev")

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed apart from those of inputs."""
        return self.schedule in ("interleaved_zero_bubble", "zbv", "dualpipev")

    def fill_up(self, num_micro_batches: int, pp: int) -> int:
        """The least number of micro-batches, at least `num_micro_batches`, that the schedule takes over `pp` ranks."""
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
        """Layers of each of the pp x num_virtual stages, in the model's order; RecipeError where one would have none.

        Each stage has an equal share of the layers and of those that the first and the last go without; the first
        stages have one more where it does not come out even. So a first stage may have the embedding alone, and a last
        one the output matrix (Llama 3, 2407.21783, section 3.3.2)."""
        num_stages = pp * self.num_virtual
        share, more = divmod(num_layers + self.first_stage_less_layers + self.last_stage_less_layers, num_stages)
        layers = [share + (stage < more) for stage in range(num_stages)]
        layers[0] -= self.first_stage_less_layers
        layers[-1] -= self.last_stage_less_layers
        if share < 1 or min(layers) < 0:
            raise RecipeError(
                f"train.parallel.pp = {pp}: with {self.num_virtual} a rank that is {num_stages} stages, of which "
                f"one would have none of the model's {num_layers} layers; expected fewer"
            )
        return tuple(layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTable:
    """`[train.context]`: how the processes of `train.parallel.cp` share a sequence."""

    method: Literal["gather", "ring"] = key(
        "gather", help="gather: keys and values of the whole sequence on each; ring: they go round, part by part"
    )
    balance: Literal["zigzag", "documents", "none"] = key(
        "zigzag", help="zigzag: equal work without documents; documents: by each row's mask; none: in order"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsTable:
    """`[train.experts]`: how a mixture of experts is trained; nothing of it for other models."""

    capacity_factor: float = key(
        1.25, at_least=0, help="room of an expert, over an even share of a sequence's choices; 0: nothing is dropped"
    )
    balance_loss: float = key(0.01, at_least=0, help="weight of the loss that evens experts out, by sequence")
    z_loss: float = key(0.001, at_least=0, help="weight of the loss that keeps the router's logits small")
    bias_rate: float = key(
        0.0, at_least=0, help="step of a bias that evens experts out without a loss (2408.15664: 0.001); 0: no bias"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Table:
    """`[train.float8]`, read where `train.dtype = "float8"`."""

    recipe: Literal["rowwise", "tensorwise"] = key(
        "rowwise", help="one scale a row, equal in every layout, or one a tensor, which depends on the layout"
    )
    emulate: bool = key(False, help="compute as float8 would on hardware without it")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapTable:
    """`[train.overlap]`: communication beside computing, on GPUs alone."""

    prefetch_layers: int = key(
        1, at_least=1, help="layers whose sharded parameters are gathered ahead; each more takes a layer's memory (GPU)"
    )
    async_tp: bool = key(
        False, help="tensor parallel exchanges in pieces beside its products, with compile (GPU; torch's async TP)"
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

    def dp_rank(self, rank: int) -> int:
        """The data parallel rank of global rank `rank`. Ranks count, from the innermost dimension: tp, cp, dp_shard,
        dp_replicate, pp."""
        return rank // (self.tp * self.cp) % self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTable:
    """`[train.optimizer]`: AdamW and its schedule."""

    lr: float = key(3e-4, above=0, help="peak learning rate")
    betas: tuple[float, float] = key((0.9, 0.95), at_least=0, at_most=1, help="AdamW's betas")
    weight_decay: float = key(0.1, at_least=0, help="none on norms")
    warmup_steps: int = key(100, at_least=0, help="steps of linear warm-up")
    schedule: Literal["cosine", "wsd"] = key("cosine", help="cosine, or warm-up, stable, decay")
    min_lr_ratio: float = key(0.1, at_least=0, at_most=1, help="the last learning rate as a share of the peak")
    clip: float = key(1.0, at_least=0, help="largest gradient norm; 0: no clipping")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTable:
    """`[train.checkpoint]`."""

    every: int = key(100, at_least=1, help="steps between checkpoints")
    keep: int = key(3, at_least=1, help="the newest ones that are kept")
    keep_every: int = key(0, at_least=0, help="checkpoints of these multiples of steps are kept for ever; 0: none")
    path: str | None = key(None, help="folder or URL of the checkpoints; not given: <output>/checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTable:
    """`[train.cache]`: blocks of remote shards on local disk, shared by the ranks of a node."""

    dir: str | None = key(
        None,
        help="not given: <output>/cache where shards are remote (sluice-cache in the system's temporary folder where "
        "the output is remote too), none where they are local",
    )
    max_bytes: int = key(64 << 30, at_least=1, help="bound on that folder, partial downloads included")
    prefetch_blocks: int = key(8, at_least=1, help="blocks in flight ahead of the step")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTable:
    """`[train.order]`."""

    window_blocks: int = key(64, at_least=1, help="blocks whose sequences are shuffled together")
    mixture_block: int = key(1000, at_least=1, help="sequences in which the shares of the mixture hold exactly")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsTable:
    """`[train.faults]`."""

    spike_sigma: float = key(6.0, above=0, help="a loss this many standard deviations above the window is a spike")
    spike_window: int = key(128, at_least=2, help="steps of that window")
    max_skips: int = key(5, at_least=1, help="batches skipped in a row before the run stops")
    watchdog_seconds: float = key(600.0, above=0, help="a step longer than this names the hung rank and stops")
    nan_at_step: int | tuple[int, ...] = key(
        (), at_least=0, help="for tests: steps whose loss becomes NaN, in every attempt"
    )

    @property
    def nan_steps(self) -> frozenset[int]:
        """`nan_at_step` as a set."""
        return frozenset((self.nan_at_step,) if isinstance(self.nan_at_step, int) else self.nan_at_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesTable:
    """`[train.resources]`: what a process reserves on a Ray cluster, and where it may lie; nothing of it under
    torchrun."""

    cpus: float = key(1.0, at_least=0, help="processors that a worker reserves")
    gpus: int | None = key(None, at_least=0, help="GPUs that a worker reserves; not given: 1 if all can have one")
    memory: int = key(0, at_least=0, help="bytes that a worker reserves (0: none)")
    resource: str = key("", help="a custom resource that its node must have, such as gpu_node")
    placement: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = key(
        "PACK", help="few nodes or many, if possible or strictly; tensor-parallel peers always share a node"
    )
    near: str = key(
        "", help="a node label such as topology.kubernetes.io/rack: ranks fill the nodes of one value, then of the next"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureTable:
    """One `[[train.mixture]]`: the weights from `first_step` on."""

    first_step: int = key(0, at_least=0, help="the first step of these weights")
    weights: dict[str, float] = key(help="source = share")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTable:
    """`[train]`."""

    data: str | tuple[DataTable, ...] = key(help="OUT, or a list of {out, prefix}")
    output: str = key(help="folder or URL of what the run leaves")
    model: str = key(help="debug, moe-debug, 125M, 1B, 8B, 70B, 405B, or the path of a config.json")
    seq_len: int = key(at_least=2, at_most=1 << 21, help="tokens of a sequence")
    global_batch: int = key(at_least=1, help="sequences of a step, over all processes; fixed for a run")
    steps: int = key(at_least=1, help="the last step's number plus one")
    micro_batch: int | None = key(
        None, at_least=1, help="sequences of one forward pass; not given: a rank's slice, at most 8"
    )
    prefetch_batches: int = key(
        2, at_least=1, help="batches in the making on each process: the next step's, and further ones against jitter"
    )
    seed: int | None = key(None, at_least=0, help="not given: run.seed")
    workers: int | None = key(None, at_least=1, help="processes; not given: the product of [train.parallel]")
    dtype: Literal["auto", "bfloat16", "float32", "float64", "float8", "bf16", "fp32", "fp64", "mxfp8", "nvfp4"] = key(
        "auto",
        help="of forward and backward; auto: bfloat16 on a GPU, else float32; float8: products in it, the rest auto",
    )
    compile: bool = key(False, help="torch.compile for each block")
    activation_checkpointing: Literal["none", "selective", "full"] = key("none", help="what is recomputed")
    peak_teraflops: float | None = key(
        None, above=0, help="peak of one device, dense bfloat16, for MFU; not given: by the GPU's name"
    )
    zero: Literal[3, 2, 1, 0] = key(
        3, help="what is sharded over dp_shard: 3 parameters too, 2 gradients and states, 1 states, 0 nothing (DDP)"
    )
    init_from: str | None = key(None, help="a folder of Llama safetensors, or a checkpoint")
    profile: tuple[int, int] | None = key(None, at_least=0, help="first and last step of a torch profiler trace")
    validation: float = key(0.0, at_least=0, at_most=0.5, help="share of each source's sequences held out")
    eval_every: int = key(0, at_least=0, help="steps between evaluations; 0: only where validation > 0, at the end")
    record_batches: bool = key(False, help="write what was fed, a row for each sequence")
    skip: tuple[tuple[int, int], ...] = key(
        (), at_least=0, help="[first, last] sequence numbers: a batch that holds one is skipped whole"
    )
    parallel: ParallelTable = key(ParallelTable())
    pipeline: PipelineTable = key(PipelineTable())
    context: ContextTable = key(ContextTable())
    experts: ExpertsTable = key(ExpertsTable())
    float8: Float8Table = key(Float8Table())
    overlap: OverlapTable = key(OverlapTable())
    optimizer: OptimizerTable = key(OptimizerTable())
    checkpoint: CheckpointTable = key(CheckpointTable())
    cache: CacheTable = key(CacheTable())
    order: OrderTable = key(OrderTable())
    faults: FaultsTable = key(FaultsTable())
    resources: ResourcesTable = key(ResourcesTable())
    mixture: tuple[MixtureTable, ...] = key((), help="none: in proportion to tokens")

    def __post_init__(self) -> None:
        for first, last in self.skip:
            if first > last:
                raise RecipeError(f"train.skip = [{first}, {last}]: expected [first, last] with first <= last")
        if self.profile is not None and self.profile[0] > self.profile[1]:
            raise RecipeError(f"train.profile = {list(self.profile)}: expected [first, last] with first <= last")
        steps = [entry.first_step for entry in self.mixture]
        if steps and (steps[0] != 0 or sorted(set(steps)) != steps):
            raise RecipeError(f"train.mixture: first_step = {steps}: expected 0 first, then rising numbers")
        if needs := _NEEDS.get(self.dtype):
            raise RecipeError(f'train.dtype = "{self.dtype}": {needs}; expected "float8" or another dtype')
        if not self.outs:
            raise RecipeError("train.data = []: expected at least one output of a data run")
        if self.mesh.tp > 1 and "SPREAD" in self.resources.placement:
            raise RecipeError(
                f'train.resources.placement = "{self.resources.placement}": expected "PACK" or "STRICT_PACK" where '
                f"train.parallel.tp > 1 ({self.mesh.tp}): tensor-parallel peers share a node"
            )

    @property
    def outs(self) -> tuple[DataTable, ...]:
        """`data`, as a list of outputs with the prefixes of their sources."""
        return (DataTable(out=self.data),) if isinstance(self.data, str) else self.data

    @property
    def mesh(self) -> Mesh:
        """`parallel` with the sizes that were not given filled in from `workers`."""
        asked = self.parallel
        fixed = asked.tp * asked.pp * asked.cp
        replicate, shard = asked.dp_replicate, asked.dp_shard
        if self.workers is not None:
            given = fixed * (replicate or 1) * (shard or 1)
            left = max(self.workers // given, 1)
            if shard is None and (self.zero != 0 or replicate is not None):
                shard = left
            elif replicate is None and self.zero == 0:
                replicate = left
        mesh = Mesh(
            dp_replicate=replicate or 1, dp_shard=shard or 1, tp=asked.tp, pp=asked.pp, cp=asked.cp, ep=asked.ep
        )
        if self.workers is not None and mesh.num_workers != self.workers:
            names = (field.name for field in dataclasses.fields(mesh) if field.name != "ep")
            sizes = " x ".join(f"{name} {getattr(mesh, name)}" for name in names)
            raise RecipeError(
                f"train.workers = {self.workers}: expected the product of [train.parallel], "
                f"{sizes} = {mesh.num_workers}"
            )
        spread = mesh.dp_shard * mesh.cp * mesh.tp
        if spread % mesh.ep:
            raise RecipeError(
                f"train.parallel.ep = {mesh.ep}: expected a divisor of dp_shard x cp x tp = {mesh.dp_shard} x {mesh.cp}"
                f" x {mesh.tp} = {spread}"
            )
        return mesh

    @property
    def num_workers(self) -> int:
        """Processes of the run."""
        return self.mesh.num_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """`[plan]`: the machines that `sluice plan` assumes."""

    gpu: str = key("H100", help="name of the GPU")
    gpus_per_node: int = key(8, at_least=1, help="GPUs that share the fast link")
    intra_gbps: float = key(3600.0, above=0, help="gigabits a second and GPU within a node, one way")
    inter_gbps: float = key(400.0, above=0, help="gigabits a second and GPU between near nodes, one way")
    near_gpus: int = key(3072, at_least=1, help="GPUs whose nodes lie near each other: a pod of the network")
    far_gbps: float = key(57.0, above=0, help="gigabits a second and GPU between pods, one way")
    latency_us: tuple[float, float, float] = key(
        (3.4, 14.0, 28.0), at_least=0, help="microseconds of a hop within a node, between near and between far nodes"
    )
    mtbf_hours: float = key(8.0, above=0, help="mean hours between failures of the whole job")
    price: float = key(2.5, at_least=0, help="price of a GPU hour")
    efficiency: float = key(
        0.5, above=0, at_most=1, help="share of the GPU's peak that its kernels reach between communications"
    )
    float8_efficiency: float = key(0.36, above=0, at_most=1, help="the same of the float8 peak, for float8 products")
    storage_gbps: float = key(1.0, above=0, help="gigabits a second and GPU to where checkpoints go")
    restart_seconds: float = key(300.0, at_least=0, help="from a failure until steps run again")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRayTable:
    """`[ray]`: where the processes run."""

    address: str = key("local", help='"local", "auto" or "ray://…"')
    num_cpus: int | None = key(None, at_least=1, help="not given: all")
    grows: bool = key(False, help="nodes come when they are asked for: what none has yet is waited for, not refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTable:
    """`mix.proxy`: what a proxy run changes of `[train]`; all else stays as the recipe has it."""

    model: str = key("debug", help="as train.model; at least 15M parameters for an answer that transfers (olmix)")
    tokens: int = key(1_000_000, at_least=1, help="tokens of one proxy run, rounded up to whole steps")
    lr: float | None = key(None, above=0, help="peak learning rate, best a small one; not given: train.optimizer.lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoremiTable:
    """`mix.doremi`: the constants of 2305.10429, section 3.1."""

    step_size: float = key(1.0, above=0, help="how fast weights follow the excess loss")
    smoothing: float = key(1e-3, at_least=0, at_most=1, help="share of the uniform mixture that is mixed in each step")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixTable:
    """`[mix]`. Sources are those of `train.data`; one whose cap is 0 is only evaluated, never trained on."""

    runs: int = key(24, at_least=3, help="mixtures to fit on: corners, uniform, natural, then drawn ones")
    replicates: int = key(2, at_least=0, help="repeats of the natural mixture with other seeds: the noise floor")
    held_out: int = key(4, at_least=0, help="further drawn mixtures that no model is fitted on")
    design: Literal["dirichlet", "simplex"] = key(
        "dirichlet", help="drawn round the token prior (RegMix), or evenly over all mixtures"
    )
    caps: dict[str, float] = key({}, at_least=0, at_most=1, help="source = largest share; 0: only evaluated")
    floors: dict[str, float] = key({}, at_least=0, at_most=1, help="source = smallest share")
    proxy: ProxyTable = key(ProxyTable())
    targets: dict[str, float] = key({}, at_least=0, help="source = weight of its validation loss; none: all alike")
    budget_tokens: int = key(0, at_least=0, help="tokens of the run to come; 0: steps x global_batch x seq_len")
    max_epochs: float = key(4.0, above=0, help="most epochs of a source under the budget (2305.16264: 4 cost little)")
    kl: float = key(0.01, at_least=0, help="nats of loss that one nat of divergence from the token prior costs")

    doremi: DoremiTable = key(DoremiTable())

    def __post_init__(self) -> None:
        for source, floor in self.floors.items():
            if floor > self.caps.get(source, 1.0):
                raise RecipeError(f"mix.floors.{source} = {floor}: expected at most its cap, {self.caps[source]}")
        if self.targets and not any(self.targets.values()):
            raise RecipeError("mix.targets: every weight is 0, expected one above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """A training recipe."""

    mistaken_for: ClassVar = (
        "source",
        "is a data recipe (it has [[source]]), which `sluice run` carries out: name a training recipe, with [train]",
    )

    run: TrainRunTable
    train: TrainTable
    plan: PlanTable = key(PlanTable())
    ray: TrainRayTable = key(TrainRayTable())
    mix: MixTable | None = key(None, help="the ablation that decides train.mixture; a training run ignores it")

    @property
    def seed(self) -> int:
        """The seed of the order and of the initial weights."""
        return self.run.seed if self.train.seed is None else self.train.seed
