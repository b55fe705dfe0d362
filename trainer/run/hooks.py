"""What a run asks of whatever replaces its processes while it goes on (`in_place/`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext

from trainer.attempts import Claimant
from trainer.feed.feed import Feed
from trainer.feed.loading import open_feed
from trainer.options import TrainRecipe
from trainer.run.assemble import load_state
from trainer.run.parts import GlooGroups, LaunchContext, ProgressWatcher, Run
from trainer.telemetry.step_report import StepReport


class Hooks:
    """As it stands here nothing replaces them: where a process is lost, all start again from the newest
    checkpoint. Whatever replaces them overrides what differs."""

    claimant: Claimant | None = None
    """Of attempts; None: whoever comes first has a number."""
    watchdog: ProgressWatcher | None = None
    """What hears of each marker; None: a `Watchdog` of each attempt."""

    def opening_groups(self) -> AbstractContextManager[None]:
        """Wraps whatever makes process groups."""
        return nullcontext()

    def open_feed(
        self,
        recipe: TrainRecipe,
        launch: LaunchContext,
        groups: GlooGroups,
        left_out: tuple[tuple[int, int], ...],
    ) -> Feed:
        """The batches of an attempt that goes on from a checkpoint. Collective."""
        return open_feed(recipe, launch.process, left_out, group=groups.feed)

    def take_over(self, launch: LaunchContext, groups: GlooGroups) -> Run | None:
        """The next attempt, of a run whose state these processes hold; None: it goes on from its newest
        checkpoint. Collective."""
        return None

    @contextmanager
    def attempt(self, run: Run) -> Iterator[None]:
        """Wraps an attempt from when its parts are there to its end."""
        stepping = run.stepping
        with (
            closing(stepping.feed),
            closing(stepping.recorder),
            stepping.recorder.recording(),
            closing(stepping.watchdog),
        ):
            yield

    def load(self, run: Run) -> None:
        """Weights and moments, and all else that an attempt goes on from. Collective."""
        load_state(run)

    def before_step(self, step: int) -> None:
        """Before step `step`. Collective."""

    def after_step(self, steps: int) -> None:
        """After `steps` steps."""

    def after_report(self, report: StepReport) -> None:
        """After a report was given to all sinks."""

    def check_place(self) -> None:
        """Raises before something is written that another process may write by now."""

    def is_replaced(self) -> bool:
        """Whether another process has this one's rank."""
        return False
