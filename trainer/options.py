"""The training recipe: `[run]`, `[train]`, `[plan]` and `[ray]`; recipe_tables has those of parallelism,
of failures and `[mix]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from lineage.recipe import IN_PROCESS, RecipeError, key, load_recipe
from trainer.recipe_tables.cache import CacheTable
from trainer.recipe_tables.evaluation import EvalTable
from trainer.recipe_tables.failures import (
    FaultsTable,
    HealthTable,
    RecorderTable,
    RecoveryTable,
    StragglersTable,
)
from trainer.recipe_tables.mixing import MixTable
from trainer.recipe_tables.optimizer import OptimizerTable
from trainer.recipe_tables.parallelism import (
    ContextTable,
    ExpertsTable,
    Float8Table,
    Mesh,
    OverlapTable,
    ParallelTable,
    PipelineTable,
    ResourcesTable,
)

_NEEDS: Final = {
    "mxfp8": "it needs a B200 (compute capability 10.0) and torchao's kernels for it, which are not built here",
    "nvfp4": "it needs a Blackwell GPU, sides of multiples of 128 and torchao's prototype, which is not used here",
}
"""Of number formats that are known and not trained in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRunTable:
    """`[run]` of a training recipe: no output here, that is `train.output`."""

    name: str = key(help="what lineage calls this run; the same name with another output is an error")
    seed: int = key(0, at_least=0, help="seeds the order and the initial weights unless train.seed is given")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """One entry of `train.data` where a run reads several outputs."""

    out: str = key(is_path=True, help="the output folder or URL of a data run")
    prefix: str = key("", help="prefix for the names of its sources, for outputs that share names")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTable:
    """`[train.checkpoint]`."""

    every: int | Literal["auto"] = key(
        100,
        at_least=1,
        help='steps between checkpoints; "auto": by Daly\'s formula from the stall of a save, the '
        "failures of all attempts and, as a prior, the failure rate in [plan]",
    )
    keep: int = key(3, at_least=1, help="number of newest checkpoints to keep")
    keep_every: int = key(
        0, at_least=0, help="keep checkpoints at multiples of this number of steps for ever; 0: none"
    )
    keep_spaced: int = key(
        0, at_least=0, help="keep this many more, evenly spaced over the run, for going back; 0: none"
    )
    on_damage: Literal["go_back", "stop"] = key(
        "go_back",
        help="if the newest checkpoint is damaged: continue from the newest whole one and move the "
        "damaged ones to the folder damaged (never deleted), or stop",
    )
    path: str | None = key(
        None, is_path=True, help="folder or URL of the checkpoints; not given: <output>/checkpoints"
    )
    local: str | None = key(
        None,
        is_path=True,
        help="folder on each node's disk for large pieces of checkpoints before their upload to an "
        "object store; not given: the system's temporary folder. Without room there they are "
        "uploaded directly",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTable:
    """`[train.order]`."""

    window_blocks: int = key(64, at_least=1, help="blocks whose sequences are shuffled together")
    mixture_block: int = key(
        1000, at_least=1, help="sequences in which the shares of the mixture hold exactly"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureTable:
    """One `[[train.mixture]]`: the weights from `first_step` on."""

    first_step: int = key(0, at_least=0, help="first step with these weights")
    weights: dict[str, float] = key(help="source = share")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTable:
    """`[train]`."""

    data: str | tuple[DataTable, ...] = key(is_path=True, help="OUT, or a list of {out, prefix}")
    output: str = key(is_path=True, help="folder or URL of what the run leaves")
    model: str = key(
        is_path=True,
        help="a named model (listed by `sluice recipe keys train.model`), or the path of a config.json"
        " (docs/families.md)",
    )
    seq_len: int = key(at_least=2, at_most=1 << 21, help="tokens of a sequence")
    global_batch: int = key(at_least=1, help="sequences of a step, over all processes; fixed for a run")
    steps: int = key(at_least=1, help="number of steps")
    micro_batch: int | None = key(
        None, at_least=1, help="sequences of one forward pass; not given: a rank's slice, at most 8"
    )
    prefetch_batches: int = key(2, at_least=1, help="batches that each process prepares ahead")
    seed: int | None = key(None, at_least=0, help="not given: run.seed")
    workers: int | None = key(None, at_least=1, help="processes; not given: the product of [train.parallel]")
    dtype: Literal[
        "auto", "bfloat16", "float32", "float64", "float8", "bf16", "fp32", "fp64", "mxfp8", "nvfp4"
    ] = key(
        "auto",
        help="dtype of forward and backward; auto: bfloat16 on a GPU, else float32; float8: products"
        " in float8, the rest as auto",
    )
    compile: bool = key(False, help="torch.compile for each block")
    activation_checkpointing: Literal["none", "selective", "full"] = key(
        "none", help="which activations are recomputed in backward"
    )
    gather_again: bool = key(
        True,
        help="tensor parallel without recomputation and compile: backward gathers inputs of products"
        " again and recomputes SwiGLU's; false: keep them, which is faster and needs more "
        "memory",
    )
    z_loss: float = key(
        0.0, at_least=0, help="weight of a token's squared log-sum-exp, added to its loss (OLMo: 1e-5)"
    )
    peak_teraflops: float | None = key(
        None, above=0, help="peak of one device, dense bfloat16, for MFU; not given: by the GPU's name"
    )
    zero: Literal[3, 2, 1, 0] = key(
        3,
        help="what is sharded over dp_shard: 3 parameters too, 2 gradients and states, 1 states, 0 nothing"
        " (DDP)",
    )
    init_from: str | None = key(
        None,
        is_path=True,
        help="a folder of Llama safetensors, or a checkpoint, to take the first weights from",
    )
    extend_vocabulary: bool = key(
        False,
        help="allow a smaller vocabulary in the safetensors of init_from; missing rows are "
        "initialised from the seed",
    )
    change_tokenizer: bool = key(
        False,
        help="allow another tokenizer in init_from than in the data; the embeddings must then be learnt anew",
    )
    profile: tuple[int, int] | None = key(
        None, at_least=0, help="first and last step of a torch profiler trace"
    )
    validation: float = key(0.0, at_least=0, at_most=0.5, help="share of each source's sequences held out")
    validation_tokens: int | None = key(
        None,
        at_least=1,
        help="maximum held-out tokens of each source for an evaluation, evenly spaced; none: all",
    )
    eval_every: int = key(
        0, at_least=0, help="steps between evaluations; 0: only at the end, if validation > 0"
    )
    trackers: tuple[Literal["wandb", "mlflow"], ...] = key((), help="report there too (an extra each)")
    record_batches: bool = key(False, help="record every sequence that was trained on, one row each")
    commit: bool = key(
        True,
        help="when the run ends, publish a root over what it has read, for `sluice prove` (docs/proofs.md)",
    )
    record_losses: bool = key(
        False,
        help="record_batches with the loss of each sequence: `sluice train why RUN_OUTPUT --step T` "
        "can then name a rank that computed wrongly",
    )
    skip: tuple[tuple[int, int], ...] = key(
        (), at_least=0, help="[first, last] sequence numbers; a batch that contains one is skipped"
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
    recorder: RecorderTable = key(RecorderTable())
    stragglers: StragglersTable = key(StragglersTable())
    recovery: RecoveryTable = key(RecoveryTable())
    health: HealthTable = key(HealthTable())
    resources: ResourcesTable = key(ResourcesTable())
    mixture: tuple[MixtureTable, ...] = key((), help="none: in proportion to tokens")
    eval: tuple[EvalTable, ...] = key((), help="none: only held-out losses")

    def __post_init__(self) -> None:
        for first, last in self.skip:
            if first > last:
                raise RecipeError(
                    f"train.skip = [{first}, {last}]: expected [first, last] with first <= last"
                )
        if self.profile is not None and self.profile[0] > self.profile[1]:
            raise RecipeError(
                f"train.profile = {list(self.profile)}: expected [first, last] with first <= last"
            )
        steps = [entry.first_step for entry in self.mixture]
        if steps and (steps[0] != 0 or sorted(set(steps)) != steps):
            raise RecipeError(f"train.mixture: first_step = {steps}: expected 0 first, then rising numbers")
        names = [entry.name for entry in self.eval]
        if len(set(names)) < len(names):
            raise RecipeError(f"train.eval: names {names}: expected a name of its own for each", "train.eval")
        if needs := _NEEDS.get(self.dtype):
            raise RecipeError(f'train.dtype = "{self.dtype}": {needs}; expected "float8" or another dtype')
        if self.extend_vocabulary and self.init_from is None:
            raise RecipeError(
                "train.extend_vocabulary = true: expected train.init_from with it; a run that begins from the seed"
                " has no rows to add to"
            )
        if self.change_tokenizer and self.init_from is None:
            raise RecipeError(
                "train.change_tokenizer = true: expected train.init_from with it; a run that begins from the seed"
                " knows no tokenizer"
            )
        if not self.outs:
            raise RecipeError("train.data = []: expected at least one output of a data run")
        if self.mesh.tp > 1 and "SPREAD" in self.resources.placement:
            raise RecipeError(
                f'train.resources.placement = "{self.resources.placement}": expected "PACK" or "STRICT_PACK"'
                f" where train.parallel.tp > 1 ({self.mesh.tp}): tensor-parallel peers share a node"
            )
        self._check_recovery()

    def _check_recovery(self) -> None:
        asked, prometheus = self.recovery, self.health.prometheus
        if prometheus is not None and not prometheus.startswith(("http://", "https://")):
            raise RecipeError(
                f"train.health.prometheus = {prometheus!r}: expected an address such as http://prometheus:9090",
                "train.health.prometheus",
            )
        if asked.mode == "restart":
            for name, value in (("spares", asked.spares), ("neighbour_copy", asked.neighbour_copy)):
                if value:
                    raise RecipeError(
                        f"train.recovery.{name} = {str(value).lower()}: expected train.recovery.mode ="
                        f' "in_place",'
                        " which alone uses it"
                    )
            if asked.on_straggler == "replace":
                raise RecipeError(
                    'train.recovery.on_straggler = "replace": expected train.recovery.mode = "in_place": a'
                    " waiting process takes the place of the slow one"
                )
            if asked.on_sign == "drain":
                raise RecipeError(
                    'train.recovery.on_sign = "drain": expected train.recovery.mode = "in_place": a waiting'
                    " process takes the place of the one whose node shows a sign"
                )
            return
        if asked.on_sign == "drain" and (prometheus is None or not self.health.every):
            raise RecipeError(
                'train.recovery.on_sign = "drain": expected train.health.prometheus, whose alerts are the signs,'
                " and train.health.every of at least 1"
            )
        if asked.spares == 0:
            raise RecipeError(
                'train.recovery.spares = 0: expected at least 1 with train.recovery.mode = "in_place": a'
                " waiting process takes the place of the one that is lost"
            )
        mesh = self.mesh
        if mesh.num_workers == 1:
            raise RecipeError(
                'train.recovery.mode = "in_place": expected at least 2 workers: nothing is left of a run'
                " whose one process is lost",
                "train.recovery.mode",
            )
        if not asked.neighbour_copy and not mesh.replicas_of(0, shards=self.zero != 0):
            raise RecipeError(
                f'train.recovery.mode = "in_place": with zero = {self.zero} and dp_replicate ='
                f" {mesh.dp_replicate} no other process holds the weights and moments of one that is lost;"
                " expected train.recovery.neighbour_copy = true, or zero = 0, or"
                " train.parallel.dp_replicate of at least 2",
                "train.recovery.mode",
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
            dp_replicate=replicate or 1,
            dp_shard=shard or 1,
            tp=asked.tp,
            pp=asked.pp,
            cp=asked.cp,
            ep=asked.ep,
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
                f"train.parallel.ep = {mesh.ep}: expected a divisor of dp_shard x cp x tp = {mesh.dp_shard} x"
                f" {mesh.cp} x {mesh.tp} = {spread}"
            )
        return mesh

    @property
    def num_workers(self) -> int:
        """Processes of the run; those that wait (`recovery.spares`) are more."""
        return self.mesh.num_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """`[plan]`: the machines that `sluice plan` assumes."""

    gpu: str = key("H100", help="name of the GPU")
    measured: str | None = key(
        None,
        help="a file of `sluice plan --measure --to FILE`: plan for that device at its measured speed",
    )
    gpus_per_node: int | None = key(
        None, at_least=1, help="GPUs of a node; not given: those of the GPU's machines"
    )
    gpu_domain: int | None = key(
        None,
        at_least=1,
        help="GPUs that share the fast link; not given: gpus_per_node, or those of the GPU's machines",
    )
    intra_gbps: float | None = key(
        None, above=0, help="gigabits a second and GPU over the fast link, one way; not given: the GPU's"
    )
    inter_gbps: float | None = key(
        None, above=0, help="gigabits a second and GPU between near nodes, one way; not given: its machines'"
    )
    near_gpus: int = key(3072, at_least=1, help="GPUs of near nodes: a pod of the network")
    far_gbps: float = key(57.0, above=0, help="gigabits a second and GPU between pods, one way")
    latency_us: tuple[float, float, float] = key(
        (3.4, 14.0, 28.0),
        at_least=0,
        help="microseconds of a hop within a node, between near and between far nodes",
    )
    headroom: float = key(
        0.12,
        at_least=0,
        at_most=0.9,
        help="share of the GPU's memory that the driver, the communication library and fragmentation take",
        source="torchtitan, 8B on 8 H100, table 1: 77.0 GiB reserved where the buckets of what it keeps make"
        " 67.6",
    )
    failures_per_node_day: float = key(
        6.5e-3,
        above=0,
        help="failures of a node a day that stop the job",
        source="2410.21680, section III: RSC-1",
    )
    mtbf_hours: float | None = key(
        None,
        above=0,
        help="mean hours between failures of the job; not given: 24 / (rate of a node and day x nodes)",
    )
    price: float = key(2.5, at_least=0, help="price of a GPU hour")
    rails: int = key(
        1,
        at_least=1,
        help="adapters of a node that one ring uses; PyTorch's sharding spreads it over all",
        source="ZeRO-3 on 384 to 2,240 A100, 2104.04473, table 2; against it 2304.11277, section 5.4, llm-foundry",
    )
    overlap: float = key(
        0.8,
        at_least=0,
        at_most=1,
        help="share of concurrent communication that computing hides, at most this share of computing's time",
        source="fitted to 2104.04473, table 2; 0: nothing is hidden",
    )
    fused_attention: bool = key(
        True,
        help="attention writes no scores; false: as Megatron-LM did until 2023, to compare with its runs",
    )
    fused_gradients: bool = key(
        False,
        help="products accumulate weight gradients themselves, as in Megatron-LM and not in this trainer",
    )
    efficiency: float | None = key(
        None,
        above=0,
        at_most=1,
        help="share of the GPU's peak that all kernels reach; not given: estimated from the shape of"
        " each product",
    )
    float8_efficiency: float | None = key(
        None, above=0, at_most=1, help="share of the float8 peak that float8 products reach"
    )
    storage_gbps: float = key(1.0, above=0, help="gigabits a second and GPU to where checkpoints go")
    restart_seconds: float = key(300.0, at_least=0, help="from a failure until steps run again")
    in_place_seconds: float = key(30.0, at_least=0, help="the same with recovery in place; assumed")
    host_gbps: float = key(
        100.0,
        above=0,
        help="gigabits a second from a GPU to host memory, which determine the stall of a save; assumed",
    )
    repair_hours: float = key(48.0, at_least=0, help="mean hours until a node that failed is back; assumed")
    spare_nodes: int | None = key(
        None,
        at_least=0,
        help="spare nodes; not given: the number that is worth its price, and fewer",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRayTable:
    """`[ray]`: where the processes run."""

    address: str = key(
        "local",
        help='"local", "auto" or "ray://…"; "none": without Ray, one worker in this process, or the '
        "processes that recovery in place starts",
    )
    num_cpus: int | None = key(None, at_least=1, help="not given: all")
    grows: bool = key(
        False,
        help="the cluster adds nodes on demand: wait for resources that no node has yet, instead of refusing",
    )

    @property
    def in_process(self) -> bool:
        """Whether Ray is neither started nor imported."""
        return self.address == IN_PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """A training recipe."""

    mistaken_for: ClassVar = (
        "source",
        "is a data recipe (it has [[source]]), which `sluice run` carries out: name a training recipe, with"
        " [train]",
    )

    run: TrainRunTable
    train: TrainTable
    plan: PlanTable = key(PlanTable())
    ray: TrainRayTable = key(TrainRayTable())
    mix: MixTable | None = key(
        None, help="the ablation that decides train.mixture; a training run ignores it"
    )

    @property
    def seed(self) -> int:
        """The seed of the order and of the initial weights."""
        return self.run.seed if self.train.seed is None else self.train.seed


def load_train_recipe(path: str | Path, overrides: Sequence[str] = ()) -> TrainRecipe:
    """The training recipe at `path` with the changes `key=value`; RecipeError if it is wrong."""
    return load_recipe(path, TrainRecipe, overrides)
