"""A training run whose processes go on when one of them dies, as each of them lives through it.

A generation is one set of processes (`generation.py`). It ends when one of them dies; those that are left keep
their process and the pieces of weights and moments that they hold (`memory.py`), and form the next one with a
spare that takes the dead one's number. It goes on as another attempt of the run (`takeover.py`): with the
progress, the reports and the account of those that are left.

Each rank sums in the place that it had, so what comes out is to the bit what it would have been. A death in
the middle of this ends that generation too, and the next one begins with what is held by then. What cannot be
filled so is reported to the supervisor, which starts all processes again from the newest checkpoint."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import StoreError
from trainer.attempts import FencedOutError, TrainingStoppedError, record_failure
from trainer.checkpoint.store import CheckpointError
from trainer.data.corpus import open_corpus
from trainer.data.recipe_order import make_order
from trainer.in_place.generation import Generation
from trainer.in_place.memory import InMemoryState
from trainer.options import TrainRecipe
from trainer.processes.agreement import CannotRecoverError
from trainer.processes.asked_stacks import stacks_to_stderr
from trainer.processes.participant import GenerationOverError, Participant, Rendezvous
from trainer.processes.result import RankOutcome, TrainingResult
from trainer.processes.runtime import local_device
from trainer.telemetry.step_report import Sink

_ENDING_THE_RUN: Final = (RecipeError, FencedOutError, StoreError, TrainingStoppedError)
"""Errors that another start would meet again, whoever met them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantJob:
    """What each process of a run gets. `launch` names this start of all of them, which began at `began_at`,
    seconds since the epoch; `shows_progress` as of `LaunchContext`."""

    recipe: TrainRecipe
    launch: str
    began_at: float
    shows_progress: bool = True


def participate(
    job: ParticipantJob, place: Rendezvous, more_sinks: Callable[[], Sequence[Sink]] = tuple
) -> int:
    """What each process does, the spares too: returns 0 once it said how the run ended, or was not needed."""
    stacks_to_stderr()
    recipe = job.recipe
    participant = Participant(place, recipe.train.faults.watchdog_seconds)
    try:
        result = Survivor(participant, job, more_sinks).run()
    except (*_ENDING_THE_RUN, CheckpointError) as error:
        participant.ended(RankOutcome.of_error(error))
    except BaseException as error:
        traceback.print_exc()
        if not participant.is_replaced():
            record_failure(
                Folder(recipe.train.output), max(participant.rank, 0), f"{type(error).__name__}: {error}"
            )
        raise
    else:
        if result is None:
            return 0
        participant.ended(RankOutcome(result=result))
    # Others may still need what this process holds, as its last words in a group.
    participant.await_end()
    return 0


class Survivor:
    """A process of the run, from generation to generation."""

    def __init__(
        self, participant: Participant, job: ParticipantJob, more_sinks: Callable[[], Sequence[Sink]]
    ) -> None:
        recipe = self._recipe = job.recipe
        self._participant, self._job, self._more_sinks = participant, job, more_sinks
        # Whatever does not depend on the rank is ready when a spare gets one.
        self._memory = InMemoryState(order=make_order(recipe, open_corpus(recipe.train.outs)))
        self._device = local_device()
        # What has been imported by now stays: looking for the remains of a model need not go through it each
        # time.
        gc.freeze()

    def run(self) -> TrainingResult | None:
        """Train until the run ends; None where this process was not needed. Errors as of
        `trainer.run.train.train`."""
        memory = self._memory
        try:
            while self._participant.await_rank():
                result = self._generation()
                if result is not None:
                    return result
            if memory.feed is not None:
                memory.feed.give_up()
        finally:
            if memory.feed is not None:
                memory.feed.close()
        return None

    def _generation(self) -> TrainingResult | None:
        """One generation; None where it ended before the run did."""
        participant = self._participant
        # A generation after a loss begins here; the first one with the start of its processes, whose imports
        # count.
        began_at = time.time() if participant.generation else self._job.began_at
        generation = Generation(
            self._recipe,
            participant,
            self._memory,
            launch=self._job.launch,
            began_at=began_at,
            shows_progress=self._job.shows_progress,
        )
        try:
            return generation.train(self._device, self._more_sinks)
        except GenerationOverError:
            pass
        except _ENDING_THE_RUN:
            # A replaced process meets the claim of its successor: that ends this process, not the run.
            if not participant.is_replaced():
                raise
        except CannotRecoverError as error:
            participant.cannot_recover(str(error))
            participant.await_over(error)
        except RuntimeError as error:  # gloo's errors, and what threads that were cut off raise
            participant.await_over(error)
        # Not within `except`: the error holds the frames, and so the model, of what has ended.
        generation.leave()
        return None
