"""`sluice plan`: what a training recipe needs of the machines that its [plan] names.

1. vocabulary    from the data's index, the model's config.json, or Llama 3's
2. model         parameters and operations, of experts too        trainer/model/config/sizes.py
3. layout        the model over the mesh, micro-batches                       layout.py
4. memory        four buckets of the fullest GPU                              memory.py
5. communication volume and time by axis and link                             communication.py
6. throughput    bubble, time of a step, utilisation             schedules.py throughput.py
7. checkpoints   size, time to save, how often                                cadence.py
8. budget        tokens, epochs, days, cost
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lineage.index.output_index import NotFinishedError
from lineage.recipe import RecipeError
from trainer.data.corpus import Corpus, open_corpus
from trainer.data.recipe_order import make_order
from trainer.model.config.description import ModelConfig
from trainer.model.config.families import PLANNED_KINDS
from trainer.model.config.sizes import model_config, takes_vocabulary
from trainer.options import PlanTable, TrainRecipe, TrainTable
from trainer.planning import cadence
from trainer.planning.communication import Traffic, in_domain, stays_within, traffic
from trainer.planning.counts import flops_per_token, num_embedding_parameters, num_parameters
from trainer.planning.gpus import Machine, machine_of
from trainer.planning.layout import PlannedLayout, planned_layout
from trainer.planning.memory import Memory, memory
from trainer.planning.throughput import Throughput, measured_layers, throughput

LLAMA_3_VOCABULARY: Final = 128_256
"""Ids of Llama 3, whose shapes the larger named models have (2407.21783, table 3: 128K): taken where no data
says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Bytes, seconds, and shares of useful time. `every_seconds` is what the recipe asks for. Overheads count
    saving and steps done again, at the recipe's interval: `overhead` as the trainer saves, while the loop
    runs on; `blocking_overhead` if it waited, which is what the two intervals assume; `young_overhead` so at
    Young's interval."""

    num_bytes: float
    save_seconds: float
    mtbf_seconds: float
    young_seconds: float
    young_steps: int
    availability_seconds: float
    availability_steps: int
    every_steps: int
    every_seconds: float
    overhead: float
    blocking_overhead: float
    young_overhead: float
    restart_overhead: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The whole run. `epochs`: of each source, as training prints them when it starts; None where there are
    no data. `ideal_days` without failures and checkpoints; cost in the currency of `plan.price`."""

    steps: int
    num_tokens: int
    corpus_tokens: int | None
    epochs: Mapping[str, float] | None
    num_flops: float
    ideal_days: float
    days: float
    gpu_hours: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyCost:
    """How many ids the plan assumes, and where the number comes from."""

    size: int
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """All that `sluice plan` shows."""

    run: str
    model: str
    vocabulary: VocabularyCost
    layout: PlannedLayout
    machine: Machine
    memory: Memory
    traffic: tuple[Traffic, ...]
    throughput: Throughput
    checkpoints: Checkpoints
    budget: Budget
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU has room, with `plan.headroom` left of what its data sheet promises."""
        return self.memory.total <= self.machine.usable_bytes


def plan_training(recipe: TrainRecipe) -> TrainingPlan:
    """The plan of a recipe; reads at most the data's index. RecipeError where the recipe cannot be carried
    out."""
    table, machine = recipe.train, machine_of(recipe.plan)
    corpus = finished_corpus(table)
    config, vocabulary = planned_model(table, corpus)
    layout = layout_for(machine, table, config)
    sent = traffic(layout, machine)
    speed = throughput(layout, sent, machine)
    checkpoints = plan_checkpoints(layout, machine, table.checkpoint.every, speed.step_seconds)
    return TrainingPlan(
        run=recipe.run.name,
        model=table.model,
        vocabulary=vocabulary,
        layout=layout,
        machine=machine,
        memory=memory(layout),
        traffic=sent,
        throughput=speed,
        checkpoints=checkpoints,
        budget=plan_budget(recipe, layout, speed, checkpoints, corpus),
        notes=_notes(table, layout, machine),
    )


def finished_corpus(table: TrainTable) -> Corpus | None:
    """The data of the recipe, where there are any yet."""
    try:
        return open_corpus(table.outs)
    except NotFinishedError:
        return None


def layout_for(machine: Machine, table: TrainTable, config: ModelConfig) -> PlannedLayout:
    """The layout of a recipe; RecipeError where this model cannot be spread so, or the GPU does not have its
    arithmetic."""
    layout = planned_layout(table, config)
    if layout.float8 and machine.gpu.peak_float8 is None:
        raise RecipeError(
            f"train.dtype = 'float8': {machine.gpu.name} (plan.gpu) has none; expected another dtype or GPU"
        )
    return layout


def planned_model(table: TrainTable, corpus: Corpus | None) -> tuple[ModelConfig, VocabularyCost]:
    """The model with the vocabulary that training would give it, or the nearest that can be known without
    data."""
    if corpus is not None:
        known, origin = corpus.tokenizer.vocab_size, f"the data's tokenizer, {corpus.tokenizer.name}"
    elif takes_vocabulary(table.model):
        known, origin = LLAMA_3_VOCABULARY, "Llama 3's: train.data has no finished output yet"
    else:
        known, origin = 0, f"{Path(table.model)}: train.data has no finished output yet"
    config = model_config(table.model, known, PLANNED_KINDS)
    return config, VocabularyCost(size=config.vocab_size, origin=origin)


def checkpoint_bytes(layout: PlannedLayout) -> float:
    """Weights and the optimizer's states of the whole model in `weight_bytes` each; the rest of a checkpoint
    is small."""
    num = num_parameters(layout.config)
    ends = num_embedding_parameters(layout.config) * (1 if layout.config.tied else 2)
    states = (2 + layout.averages) * num - (num - ends if layout.muon_rounds else 0)
    return float(layout.weight_bytes * (num + states))


def mtbf_hours(plan: PlanTable, num_nodes: int) -> float:
    """Mean hours between failures of a job on so many nodes: any of them stops it (2410.21680, section
    III)."""
    return plan.mtbf_hours or 24 / (plan.failures_per_node_day * num_nodes)


def plan_checkpoints(
    layout: PlannedLayout, machine: Machine, asked: int | Literal["auto"], step_seconds: float
) -> Checkpoints:
    """Size and cadence; every GPU writes its share at `plan.storage_gbps`. "auto" is planned as Young's
    interval: what a save stops the loop for is known only once it runs."""
    plan, size, num = machine.plan, checkpoint_bytes(layout), layout.mesh.num_workers
    save = size / (num * plan.storage_gbps * 1e9 / 8)
    mtbf = mtbf_hours(plan, -(-num // machine.gpus_per_node)) * 3600
    young = cadence.young_interval(save, mtbf)
    available = cadence.availability_interval(save, mtbf, plan.restart_seconds)
    every_steps = max(1, round(young / step_seconds)) if asked == "auto" else asked
    every = every_steps * step_seconds
    return Checkpoints(
        num_bytes=size,
        save_seconds=save,
        mtbf_seconds=mtbf,
        young_seconds=young,
        young_steps=max(1, round(young / step_seconds)),
        availability_seconds=available,
        availability_steps=max(1, round(available / step_seconds)),
        every_steps=every_steps,
        every_seconds=every,
        overhead=cadence.asynchronous_overhead(every, save, mtbf),
        blocking_overhead=cadence.cadence_overhead(every, save, mtbf),
        young_overhead=cadence.cadence_overhead(young, save, mtbf),
        restart_overhead=cadence.restart_overhead(plan.restart_seconds, mtbf),
    )


def plan_budget(
    recipe: TrainRecipe,
    layout: PlannedLayout,
    speed: Throughput,
    checkpoints: Checkpoints,
    corpus: Corpus | None,
) -> Budget:
    """Tokens, days and cost of all steps, with what saving, failures and restarts add."""
    steps = recipe.train.steps
    num_tokens = steps * layout.global_batch * layout.seq_len
    available = sum(corpus.epoch_tokens.values()) if corpus is not None else None
    ideal = steps * speed.step_seconds
    seconds = ideal * (1 + checkpoints.overhead + checkpoints.restart_overhead)
    gpu_hours = seconds / 3600 * layout.mesh.num_workers
    return Budget(
        steps=steps,
        num_tokens=num_tokens,
        corpus_tokens=available,
        epochs=make_order(recipe, corpus).epochs(steps * layout.global_batch) if corpus is not None else None,
        num_flops=flops_per_token(layout.config, layout.seq_len) * num_tokens,
        ideal_days=ideal / 86400,
        days=seconds / 86400,
        gpu_hours=gpu_hours,
        cost=gpu_hours * recipe.plan.price,
    )


def _notes(table: TrainTable, layout: PlannedLayout, machine: Machine) -> tuple[str, ...]:
    """The assumptions behind the figures; and what copies on neighbours take: of each step one over the network,
    of two steps a process's own and another's in host memory."""
    mesh, pipeline, node = layout.mesh, layout.pipeline, machine.gpu_domain
    num = -(-layout.num_rows // layout.micro_batch)
    replicas = mesh.dp_replicate * (mesh.dp_shard * mesh.cp if layout.zero == 0 else 1)
    copy = checkpoint_bytes(layout) * replicas / mesh.num_workers
    # Members of a ring of shards on a node: of one there is nothing to spread.
    shards, members = layout.shards.split, node // mesh.tp
    over_nodes = shards > 1 and not in_domain(mesh.tp * shards, machine, mesh.num_workers)
    within = in_domain(mesh.tp, machine, mesh.num_workers)
    group = max(
        (size for size in (mesh.tp, mesh.ep) if not stays_within(size, node, mesh.num_workers)), default=0
    )
    idle = node % math.lcm(group or 1, machine.gpus_per_node)
    where = {
        f"train.zero = {layout.zero}: within a step torch's pipelines hold weights and gradients whole; only"
        " the moments stay sharded": mesh.pp > 1 and layout.zero >= 2,
        "train.pipeline.schedule = 'dualpipev': forward and backward passes that it pairs are taken to hide"
        " each other's all-to-alls, as DualPipe's kernels do; this trainer runs them one after the other": (
            pipeline.schedule == "dualpipev" and mesh.pp > 1 and mesh.ep > 1
        ),
        f"train.parallel.tp = {mesh.tp}: more than a node's {node} GPUs, so each layer waits for the slow"
        " link": mesh.tp > node,
        f"train.parallel.tp = {mesh.tp}: a node's {node} GPUs are no multiple of it, so some peers lie on two"
        " nodes, which training refuses": mesh.tp <= node and not within,
        f"train.pipeline.schedule = {pipeline.schedule!r}: with train.parallel.pp = {mesh.pp} it takes"
        f" {layout.num_micro_batches} micro-batches a step, of which a rank's sequences make {num}: the"
        " others are padding": layout.num_micro_batches > num,
        f"plan.gpu_domain = {node}: groups of {group} are put on {node - idle} GPUs of each, and {idle} stay idle": (
            0 < idle < node and in_domain(group, machine, mesh.num_workers)
        ),
        f"train.global_batch = {layout.global_batch}: not a multiple of {mesh.dp} ranks, so some have one of"
        " padding": layout.global_batch % mesh.dp > 0,
        f"train.micro_batch = {layout.micro_batch}: a rank's {layout.num_rows} sequences are no multiple of"
        " it, and a pipeline's micro-batches are of one size: padding fills up the last": (
            mesh.pp > 1 and layout.num_rows % layout.micro_batch > 0
        ),
        f"plan.rails = 1: weights that {shards} GPUs share go over one adapter a node, as with ZeRO-3 in 2021;"
        f" PyTorch's sharding has been seen to use all. If yours does: --set plan.rails={members}": (
            machine.plan.rails == 1 and over_nodes and members > 1
        ),
        "plan.measured: products and links are read, its layers are not those of this model, mesh and micro-batch": (
            bool(machine.measured and not machine.plan.efficiency and not measured_layers(layout, machine))
        ),
        f"train.recovery.neighbour_copy = true: each process keeps {4 * copy / 1e9:,.1f} GB in host memory"
        f" and sends {copy / 1e9:,.1f} GB a step to the next, {copy * 8 / (machine.inter_gbps * 1e9):,.2f} s"
        f" at plan.inter_gbps = {machine.inter_gbps:g} where that is another node, which the step's time above"
        " does not hold": table.recovery.neighbour_copy,
    }
    return tuple(note for note, applies in where.items() if applies)
