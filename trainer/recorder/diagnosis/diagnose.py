"""The diagnosis of a training run: its recorders read together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lineage.storage.folder import Folder
from trainer.attempts import failures
from trainer.options import TrainRecipe
from trainer.recipe_tables.failures import StragglersTable
from trainer.recorder.diagnosis.collectives import Absence, Mismatch, absences, causes, mismatches
from trainer.recorder.diagnosis.own_times import HeatMap, RankTimes, heat_map, rank_times, stragglers
from trainer.recorder.diagnosis.reading import Recorders, read_recorders
from trainer.recorder.diagnosis.stacks import Stack, last_stack
from trainer.telemetry.stragglers import MORE_TO_DO, Straggler


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong, if anything: `mismatches` and `absences` stop a run, `stragglers` slow it. `silent`:
    ranks that left no recorder. `stacks`: where ranks were, of those that wrote it; `errors`: why processes
    of the attempt ended."""

    output: str
    recorders: Recorders
    world_size: int
    silent: tuple[int, ...]
    mismatches: tuple[Mismatch, ...]
    absences: tuple[Absence, ...]
    stragglers: tuple[Straggler, ...]
    times: tuple[RankTimes, ...]
    heat: HeatMap
    stacks: Mapping[int, Stack]
    errors: Mapping[int, str]

    @property
    def is_stopped(self) -> bool:
        """Whether something was found for which the run cannot go on."""
        return bool(self.mismatches or self.absences)

    @property
    def causes(self) -> list[Absence]:
        """Those of the absences that follow from no other."""
        return causes(self.absences)

    def node(self, rank: int) -> str:
        """The node of a rank; empty where it left no recorder."""
        ring = self.recorders.rings.get(rank)
        return "" if ring is None else ring.header.node


def diagnose(output: Folder, recipe: TrainRecipe | None, attempt: int | None = None) -> Diagnosis:
    """Read the recorders of an attempt, the newest where none is given. `recipe`: that of the run, for who
    does the same work and when a rank is slow. NoRecorderError where there are none."""
    recorders = read_recorders(output, attempt)
    rings = recorders.rings
    world_size = next(iter(rings.values())).header.world_size
    table = StragglersTable() if recipe is None else recipe.train.stragglers
    alike = [list(range(world_size))] if recipe is None else recipe.train.mesh.same_work()
    stacks = {
        rank: stack
        for rank, text in recorders.stacks.items()
        if rank in rings and (stack := last_stack(text, rings[rank].header.thread)) is not None
    }
    return Diagnosis(
        output=output.url,
        recorders=recorders,
        world_size=world_size,
        silent=tuple(rank for rank in range(world_size) if rank not in rings),
        mismatches=tuple(mismatches(rings)),
        absences=tuple(absences(rings)),
        stragglers=tuple(stragglers(rings, alike, table, table.window, MORE_TO_DO)),
        times=tuple(rank_times(rings)),
        heat=heat_map(rings),
        stacks=stacks,
        errors={rank: why for (number, rank), why in failures(output).items() if number == recorders.attempt},
    )
