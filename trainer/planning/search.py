"""All layouts of a model on a number of GPUs: those that fit, ranked by the time of a step, and why others do
not.

Meshes, micro-batches, schedules, recomputation and ZeRO levels are tried in nested loops, and what is refused
at one level is not tried below it. What fits gets a time that it cannot beat, cheap to reckon; the ranking
takes candidates from a heap in the order of these and reckons the true time of those that come up, so that
few schedules are simulated and no candidate is passed over."""

from __future__ import annotations

import dataclasses
import functools
import gc
import heapq
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from lineage.recipe import RecipeError
from trainer.model.config.description import ModelConfig
from trainer.options import TrainRecipe
from trainer.parallel.checks import check_mesh, check_split_backward
from trainer.planning.communication import in_domain, traffic, weight_traffic
from trainer.planning.gpus import Machine, machine_of
from trainer.planning.layout import (
    Part,
    PlannedLayout,
    Recompute,
    Zero,
    shards_of,
)
from trainer.planning.memory import (
    Memory,
    gathered_parameters,
    instants,
    likely_ranks,
    memory,
    owned_parameters,
    sharded_bytes,
    state_bytes,
)
from trainer.planning.plan import finished_corpus, layout_for, planned_model
from trainer.planning.throughput import (
    EVEN,
    MicroBatchTime,
    Throughput,
    least_pipeline_seconds,
    pass_times,
    pipeline_seconds,
    synchronising_seconds,
    throughput,
    update_seconds,
)
from trainer.recipe_tables.parallelism import Mesh, ParallelTable, PipelineTable, Schedule

MICRO_BATCHES: Final = (1, 2, 4, 8)
"""Sequences of a forward pass that are tried."""

_VIRTUAL: Final = (2, 3, 4, 5, 6, 7, 8)

Reason = Literal["tp over a node", "does not divide", "batch too small", "schedule", "does not fit"]


class LayoutChoice(NamedTuple):
    """The keys of a recipe that a search decides; None: refused before it was decided, or nothing to
    decide."""

    pp: int
    cp: int
    tp: int
    dp: int
    ep: int | None = None
    micro_batch: int | None = None
    pipeline: PipelineTable | None = None
    recompute: Recompute | None = None
    gather_again: bool | None = None


class RefusedLayout(NamedTuple):
    """A choice, or all that begin with it, and why not. `excess_bytes`: how much does not fit. `zero` and
    `dp_shard`, how the weights are held, are the last to be decided."""

    choice: LayoutChoice
    reason: Reason
    message: str
    excess_bytes: float = 0.0
    zero: Zero | None = None
    dp_shard: int | None = None

    @property
    def text(self) -> str:
        """The reason in a few words."""
        return self.message or f"the fullest GPU lacks {self.excess_bytes / 1e9:,.1f} GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout that fits, with its memory and its time."""

    layout: PlannedLayout
    memory: Memory
    throughput: Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The fastest layouts, fastest first; the fastest of each value of an axis that fits; the recipe's own
    layout, which need not fit, or why it cannot be planned; all that was refused. `seconds`: what the search
    took."""

    ranked: tuple[Candidate, ...]
    by_axis: dict[str, dict[int, Candidate]]
    own: Candidate | None
    own_refused: str | None
    num_fitting: int
    refused: tuple[RefusedLayout, ...]
    seconds: float

    @property
    def num_candidates(self) -> int:
        """Layouts that were looked at; what was refused with several choices open counts once."""
        return self.num_fitting + len(self.refused)


def search(recipe: TrainRecipe, limit: int = 20) -> SearchResult:
    """All layouts of the recipe's model, batch and number of processes on the GPUs of its [plan]. RecipeError
    where the model cannot be planned at all."""
    began = time.perf_counter()
    machine = machine_of(recipe.plan)
    config, _ = planned_model(recipe.train, finished_corpus(recipe.train))
    maker = _Maker(recipe, config, machine)
    # A search makes millions of tuples and no circle; going through them again and again takes a fifth of its
    # time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for core in maker.cores():
            maker.spread(core)
        ranking = _Ranking(maker)
        ranked = tuple(itertools.islice(ranking.fastest(range(len(maker.fitting))), limit))
        by_axis = {}
        for axis in ("tp", "pp", "cp", "ep"):
            numbers: defaultdict[int, list[int]] = defaultdict(list)
            for number, entry in enumerate(maker.fitting):
                numbers[getattr(entry.layout.mesh, axis)].append(number)
            by_axis[axis] = {value: next(ranking.fastest(numbers[value])) for value in sorted(numbers)}
    finally:
        if was_enabled:
            gc.enable()
    own = own_refused = None
    try:
        own = evaluate(layout_for(machine, recipe.train, config), machine)
    except RecipeError as error:
        own_refused = str(error)
    return SearchResult(
        ranked=ranked,
        by_axis=by_axis,
        own=own,
        own_refused=own_refused,
        num_fitting=len(maker.fitting),
        refused=tuple(maker.refused),
        seconds=time.perf_counter() - began,
    )


def evaluate(
    layout: PlannedLayout, machine: Machine, known: tuple[MicroBatchTime, float] | None = None
) -> Candidate:
    """One layout, whether it fits or not; `known`: see `throughput`."""
    speed = throughput(layout, traffic(layout, machine), machine, known)
    return Candidate(layout=layout, memory=memory(layout), throughput=speed)


@dataclass(kw_only=True)
class _Core:
    """What layouts share that differ only in how data parallel ranks hold the weights. Its times are reckoned
    when they are first asked for: most layouts fit in no way."""

    choice: LayoutChoice
    layout: PlannedLayout
    machine: Machine

    @functools.cached_property
    def times(self) -> MicroBatchTime:
        return pass_times(self.layout, self.machine)

    @functools.cached_property
    def least(self) -> float:
        return least_pipeline_seconds(self.times, self.layout, self.machine)

    @functools.cached_property
    def exact(self) -> float:
        return pipeline_seconds(self.times, self.layout, self.machine)


@dataclass(kw_only=True)
class _FittingLayout:
    core: _Core
    layout: PlannedLayout
    total: float

    @functools.cached_property
    def besides(self) -> tuple[float, float]:
        """Seconds beside those of the pipeline."""
        layout, machine = self.layout, self.core.machine
        sent = tuple(weight_traffic(layout, machine))
        exposed = synchronising_seconds(layout, sent, self.core.times, machine)
        return exposed, update_seconds(layout, machine)


class _Maker:
    """Tries the choices, level by level."""

    def __init__(self, recipe: TrainRecipe, config: ModelConfig, machine: Machine) -> None:
        self.recipe, self.config, self.machine = recipe, config, machine
        self.fitting: list[_FittingLayout] = []
        self.refused: list[RefusedLayout] = []
        table = recipe.train
        # Bytes of numbers and the like are the recipe's; one process is always possible.
        one = dataclasses.replace(
            table,
            parallel=ParallelTable(),
            pipeline=PipelineTable(),
            workers=1,
            micro_batch=1,
            zero=3,
            activation_checkpointing="none",
            overlap=dataclasses.replace(table.overlap, async_tp=False),
        )
        self._template = layout_for(machine, one, config)
        self._num_gpus, self._compile = table.num_workers, table.compile
        self._divisors = _divisors(self._num_gpus)

    def cores(self) -> Iterator[_Core]:
        """Every mesh, micro-batch, schedule and recomputation that can be carried out."""
        for choice in self._meshes():
            for micro_batch in MICRO_BATCHES:
                rows = -(-self.recipe.train.global_batch // choice.dp)
                with_batch = choice._replace(micro_batch=micro_batch)
                if rows < micro_batch:
                    message = f"a data parallel rank has {rows} of {micro_batch} sequences"
                    self.refused.append(RefusedLayout(with_batch, "batch too small", message))
                    continue
                for pipeline in self._pipelines(choice.pp):
                    num = pipeline.fill_up(-(-rows // micro_batch), choice.pp)
                    yield from self._recomputing(with_batch._replace(pipeline=pipeline), num)

    def _meshes(self) -> Iterator[LayoutChoice]:
        table, experts = self.recipe.train, self.config.experts
        eps = _divisors(experts.num_experts) if experts else [1]
        for pp, cp, tp in itertools.product(self._divisors, repeat=3):
            if self._num_gpus % (pp * cp * tp):
                continue
            choice = LayoutChoice(pp=pp, cp=cp, tp=tp, dp=self._num_gpus // (pp * cp * tp))
            if not in_domain(tp, self.machine, self._num_gpus):
                message = f"a node has {self.machine.gpu_domain} GPUs, no multiple of {tp}"
                self.refused.append(RefusedLayout(choice, "tp over a node", message))
            elif choice.dp > table.global_batch:
                message = f"{choice.dp} data parallel ranks share {table.global_batch} sequences"
                self.refused.append(RefusedLayout(choice, "batch too small", message))
            elif pp > self.config.num_layers:
                self.refused.append(
                    RefusedLayout(choice, "does not divide", f"the model has {self.config.num_layers} layers")
                )
            else:
                for ep in eps:
                    spread = choice._replace(ep=ep)
                    try:
                        check_mesh(self._mesh(spread, choice.dp), self.config, table.seq_len, table.context)
                    except RecipeError as error:
                        self.refused.append(RefusedLayout(spread, "does not divide", str(error)))
                    else:
                        yield spread

    def _mesh(self, choice: LayoutChoice, dp_shard: int) -> Mesh:
        dp_replicate, ep = choice.dp // dp_shard, choice.ep or 1
        return Mesh(
            dp_replicate=dp_replicate, dp_shard=dp_shard, tp=choice.tp, pp=choice.pp, cp=choice.cp, ep=ep
        )

    def _pipelines(self, pp: int) -> Sequence[PipelineTable]:
        if pp == 1:
            return (PipelineTable(),)
        layers, found = self.config.num_layers, []
        schedules: list[tuple[Schedule, int]] = [("gpipe", 1), ("1f1b", 1), ("zbv", 2), ("dualpipev", 2)]
        schedules += [("interleaved", num) for num in _VIRTUAL]
        schedules += [("interleaved_zero_bubble", num) for num in _VIRTUAL]
        for schedule, num in schedules:
            stages, table = pp * num, PipelineTable(schedule=schedule, virtual_stages=num)
            if stages <= layers and (layers % stages == 0 or num <= 2):
                found.append(table)
            if stages <= layers + 2 and (layers + 2) % stages == 0:  # both ends one layer lighter
                lighter = dataclasses.replace(table, first_stage_less_layers=1, last_stage_less_layers=1)
                found.append(lighter)
        return found

    def _recomputing(self, choice: LayoutChoice, num_micro_batches: int) -> Iterator[_Core]:
        assert choice.pipeline is not None
        assert choice.micro_batch is not None
        recomputes: tuple[Recompute, ...] = ("none", "selective", "full")
        for recompute in recomputes:
            keeps = False if recompute == "none" and choice.tp > 1 and not self._compile else None
            decided = choice._replace(recompute=recompute, gather_again=keeps)
            if choice.pp > 1:
                try:
                    check_split_backward(choice.pipeline, recompute, compiled=self._compile)
                except RecipeError as error:
                    self.refused.append(RefusedLayout(decided, "schedule", str(error)))
                    continue
            layout = dataclasses.replace(
                self._template,
                mesh=self._mesh(choice, choice.dp),
                pipeline=choice.pipeline,
                recompute=recompute,
                gather_again=keeps is None,
                micro_batch=choice.micro_batch,
                num_micro_batches=num_micro_batches,
                async_tp=self.recipe.train.overlap.async_tp and choice.tp > 1,
            )
            yield _Core(choice=decided, layout=layout, machine=self.machine)

    def spread(self, core: _Core, holdings: Sequence[tuple[Zero, Sequence[int]]] = ()) -> None:
        """Every way in which data parallel ranks can hold the weights, or these `holdings`. What tensor peers
        gathered is gathered again, which takes time, only where there is no room to keep it."""
        layout, room = core.layout, self.machine.usable_bytes
        mesh, choice, peers = layout.mesh, core.choice, layout.mesh.cp * layout.mesh.tp
        ranks = list(_rank_bytes(layout))
        short: list[tuple[Zero, Sequence[int]]] = []
        for zero, shards in holdings or self._holdings(mesh):
            # A pipeline holds as much beside the shards whatever the level.
            if mesh.pp == 1 and zero < 3:
                ranks = list(_rank_bytes(dataclasses.replace(layout, zero=zero)))
            lacking = []
            for dp_shard in shards:
                if dp_shard * peers % mesh.ep:
                    message = f"ep = {mesh.ep} does not divide dp_shard x cp x tp = {dp_shard * peers}"
                    self.refused.append(
                        RefusedLayout(choice, "does not divide", message, 0.0, zero, dp_shard)
                    )
                    continue
                total, spread = 0.0, shards_of(zero, dp_shard * mesh.cp, mesh.tp, mesh.ep)
                for rank in ranks:
                    owned = owned_parameters(layout, rank.part)
                    weights = sharded_bytes(owned, layout.weight_bytes, spread)
                    fullest = max(rank.beside, rank.beside_gradients + weights)
                    states = state_bytes(layout, rank.part, spread)
                    total = max(total, rank.gathered + weights + states + fullest)
                if total > room:
                    lacking.append(dp_shard)
                    self.refused.append(
                        RefusedLayout(choice, "does not fit", "", total - room, zero, dp_shard)
                    )
                else:
                    made = dataclasses.replace(layout, zero=zero, mesh=self._mesh(choice, dp_shard))
                    self.fitting.append(_FittingLayout(core=core, layout=made, total=total))
            if lacking:
                short.append((zero, lacking))
        if short and choice.gather_again is False:
            again = dataclasses.replace(layout, gather_again=True)
            choice = choice._replace(gather_again=True)
            self.spread(_Core(choice=choice, layout=again, machine=self.machine), short)

    def _holdings(self, mesh: Mesh) -> list[tuple[Zero, list[int]]]:
        """ZeRO levels, each with the numbers of ranks that can share the weights."""
        if mesh.dp * mesh.cp == 1:
            return [(3, [1])]
        shards = [shard for shard in _divisors(mesh.dp) if shard > 1 or mesh.cp > 1]
        found: list[tuple[Zero, list[int]]] = [(3, shards)]
        if mesh.pp == 1:  # a pipeline gathers once a step whatever the level
            found += [(2, shards), (1, [mesh.dp])]
        if mesh.ep == 1:
            found.append((0, [1]))
        return found


class _RankBytes(NamedTuple):
    """What a rank holds whatever its shards are, bytes: weights that are gathered, and activations and
    gradients at the fullest instant at which shards have no gradients, and at which they do."""

    part: Part
    gathered: float
    beside: float
    beside_gradients: float


def _rank_bytes(layout: PlannedLayout) -> Iterator[_RankBytes]:
    groups = likely_ranks(layout)
    for ranks, of_ranks in zip(groups, instants(layout, groups), strict=True):
        part = layout.ranks[ranks[0]]
        beside = [(instant.sharded, instant.activations + instant.gradients) for instant in of_ranks]
        yield _RankBytes(
            part=part,
            gathered=gathered_parameters(layout, part),
            beside=max((size for sharded, size in beside if not sharded), default=0.0),
            beside_gradients=max((size for sharded, size in beside if sharded), default=-math.inf),
        )


@functools.lru_cache(maxsize=4096)
def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


class _Ranking:
    """Takes candidates by time, with as few of them reckoned to the end as that needs."""

    def __init__(self, maker: _Maker) -> None:
        self._maker = maker
        self._known: dict[int, Candidate] = {}

    def fastest(self, numbers: Iterable[int]) -> Iterator[Candidate]:
        """Those of these numbers, fastest first. Those as fast as each other, in one step of `EVEN` of time,
        come with fewest exotic choices first, then the least memory, then the first."""
        heap = [self._place(number, 0) for number in numbers]
        heapq.heapify(heap)
        while heap:
            *_, number, times_reckoned = heapq.heappop(heap)
            if times_reckoned < 2:
                heapq.heappush(heap, self._place(number, times_reckoned + 1))
                continue
            if number not in self._known:
                entry = self._maker.fitting[number]
                known = entry.core.times, entry.core.exact
                self._known[number] = evaluate(entry.layout, self._maker.machine, known)
            yield self._known[number]

    def _place(self, number: int, times_reckoned: int) -> tuple[int, bool, int, float, int, int]:
        """A candidate's place in the order: by the least time of its pipeline alone; with what comes besides;
        by its true time. What is not reckoned to the end comes before its equals that are, which it might
        still precede."""
        entry, known = self._maker.fitting[number], times_reckoned == 2
        seconds = entry.core.exact if known else entry.core.least
        if times_reckoned:
            exposed, update = entry.besides
            seconds = seconds + exposed + update
        even = math.floor(math.log(seconds) / EVEN)
        return even, known, _exotic(entry.layout) if known else 0, entry.total, number, times_reckoned


def _exotic(layout: PlannedLayout) -> int:
    """Choices beyond sharded data parallelism: axes in use, stages a rank, and a schedule other than 1F1B's
    two."""
    mesh, pipeline = layout.mesh, layout.pipeline
    axes = sum(size > 1 for size in (mesh.dp_replicate, mesh.tp, mesh.pp, mesh.cp, mesh.ep))
    if mesh.pp == 1:
        return axes
    return axes + pipeline.num_virtual - 1 + 2 * (pipeline.schedule not in ("1f1b", "interleaved"))
