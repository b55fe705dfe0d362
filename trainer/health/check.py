"""The health of a run's machines: before it starts, after each failure (which is a start), and every so many
steps."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.attempts import TrainingStoppedError
from trainer.health.probe import Probe, judge, probe
from trainer.health.replicas import OddReplica, Replicas
from trainer.health.signs import Sign, SignReader, names_of_this_node
from trainer.options import TrainTable
from trainer.processes.heard import of_every_rank
from trainer.telemetry.symptoms import Symptom


class Health:
    """What looks after the machines. Every rank has one; collective throughout. `state`: the tensors that
    replicas share, as they are now."""

    def __init__(
        self,
        table: TrainTable,
        device: torch.device,
        output: Folder,
        control: dist.ProcessGroup,
        state: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        self._every = table.health.every
        self._replicas_every = table.recovery.check_replicas_every
        self._device, self._control, self._state = device, control, state
        self._folder = None if output.is_remote else output.url
        self._host = socket.gethostname()
        self._names = names_of_this_node()
        # One process asks: ten thousand at once would be too many for a Prometheus.
        asks = self._every and table.health.prometheus is not None and dist.get_rank() == 0
        self._signs = SignReader(str(table.health.prometheus)) if asks else None
        self._replicas: Replicas | None = None

    def start(self) -> list[Symptom]:
        """Before the first step: what is found. TrainingStoppedError where a rank computes wrongly;
        RecipeError where replicas are to be compared and there are none."""
        if self._replicas_every:
            self._replicas = Replicas(self._state(), self._control)
            if self._replicas.most == 1:
                raise RecipeError(
                    f"train.recovery.check_replicas_every = {self._replicas_every}: every weight lies on one"
                    " process alone; expected train.parallel.dp_replicate of at least 2, or 0 for no check",
                    "train.recovery.check_replicas_every",
                )
        return self._look() if self._every else []

    def after_step(self, steps: int) -> list[Symptom]:
        """After so many steps: what is found where something was due. TrainingStoppedError where a rank
        computes wrongly, or replicas differ and no majority says which is right."""
        found = self._look() if self._every and steps % self._every == 0 else []
        if self._replicas is not None and steps % self._replicas_every == 0:
            found += self._compare(steps)
        return found

    def _look(self) -> list[Symptom]:
        mine = probe(self._device, self._host, self._folder)
        signs = [] if self._signs is None else self._signs.read()
        every = of_every_rank((mine, self._names, signs), self._control)
        found = judge([each for each, _, _ in every])
        corrupt = [symptom for symptom in found if symptom.kind == "corrupt"]
        if corrupt:
            raise TrainingStoppedError(
                f"{'; '.join(symptom.text for symptom in corrupt)}. Take its node out and make the same call"
                " again: it goes on from the newest checkpoint"
            )
        return [*found, *_of_nodes([(each, names) for each, names, _ in every], every[0][2])]

    def _compare(self, steps: int) -> list[Symptom]:
        assert self._replicas is not None
        found = self._replicas.compare(self._state())
        open_ones = [odd for odd in found if not odd.mended]
        if open_ones:
            raise TrainingStoppedError(
                f"after {steps} steps {_described(open_ones[0])}, and no majority of them says which is"
                f" right: go back"
                " with --from-step to a checkpoint before the last comparison, and take the nodes out"
            )
        return [
            Symptom(
                rank=odd.rank,
                kind="odd",
                text=f"after {steps} steps {_described(odd)}: mended from the others",
            )
            for odd in found
        ]


def _of_nodes(every: Sequence[tuple[Probe, set[str]]], signs: Sequence[Sign]) -> list[Symptom]:
    """The signs of nodes on which this run has a rank, each for the first of them."""
    first: dict[str, Probe] = {}
    for mine, names in reversed(every):
        first |= dict.fromkeys(names, mine)
    return [
        Symptom(
            rank=found.rank, kind="sign", text=f"rank {found.rank} ({found.host}) shows a sign: {sign.what}"
        )
        for sign in signs
        if (found := first.get(sign.node)) is not None
    ]


def _described(odd: OddReplica) -> str:
    more = f" and {len(odd.tensors) - 1} more" if len(odd.tensors) > 1 else ""
    others = ", ".join(str(rank) for rank in odd.replicas if rank != odd.rank)
    return f"rank {odd.rank} differs from its replicas {others} in {odd.tensors[0]}{more}"
