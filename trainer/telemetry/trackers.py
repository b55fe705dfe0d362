"""Weights & Biases and MLflow, beside TensorBoard and with its names: reports go to them from a thread of their own, so
that neither an error nor a server that hangs reaches the run."""

from __future__ import annotations

import math
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lineage.ids import content_hash
from lineage.secrets import without_secrets
from lineage.storage.folder import Folder
from trainer.telemetry.scalars import scalars
from trainer.telemetry.step_report import StepReport

TrackerName = Literal["wandb", "mlflow"]
Log = Callable[[int, float, Mapping[str, float]], None]
"""Logs a step's figures: its number, when it ended (seconds since the epoch), its scalars."""
_WAITING: Final = 10_000
"""Reports that may wait for a tracker."""
_CLOSING_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of a run before its first step. `config`: the recipe and the identity that lineage
    records, by dotted names."""

    name: str
    output: Folder
    config: Mapping[str, object]

    @property
    def key(self) -> str:
        """The same for every start of this run."""
        return content_hash(f"{self.name}\n{self.output.url}".encode()).hex()

    def folder(self, name: str) -> str:
        """Where a tracker without a server writes: in the output, or for a remote one in the working folder."""
        return name if self.output.is_remote else self.output.at(name)


class Tracker:
    """A sink. The first error ends it, in a line on stderr; the run goes on."""

    def __init__(self, name: TrackerName, run: TrackedRun) -> None:
        self._name, self._run = name, run
        self._reports: queue.Queue[StepReport | None] = queue.Queue(_WAITING)
        self._failed = False
        self._thread = threading.Thread(target=self._log_all, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def write(self, report: StepReport) -> None:
        """Hand a report over; never waits."""
        if not self._failed:
            try:
                self._reports.put_nowait(report)
            except queue.Full:
                self._give_up(f"{_WAITING:,} reports wait for it")

    def flush(self) -> None:
        """Nothing: a checkpoint does not wait for a tracker."""

    def close(self) -> None:
        """Wait a while for what is still to be logged."""
        if self._failed:
            return
        try:
            self._reports.put_nowait(None)
        except queue.Full:
            self._give_up(f"{_WAITING:,} reports wait for it")
            return
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            self._give_up(f"it did not take the last reports within {_CLOSING_SECONDS:.0f} s")

    def _log_all(self) -> None:
        try:
            log, finish = _OPENERS[self._name](self._run)
            while (report := self._reports.get()) is not None:
                found = {key: value for key, value in scalars(report).items() if math.isfinite(value)}
                log(report.step, report.at or 0.0, found)
            finish()
        except ImportError as error:
            self._give_up(f'{error}; expected the extra "{self._name}" to be installed')
        # Whatever a tracker raises: its errors are its own, and no reason to stop training.
        except Exception as error:  # noqa: BLE001
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            said = " ".join(why.split())
            sys.stderr.write(
                f"train.trackers: {self._name} gets no more reports ({said}); the run goes on, and"
                f" {self._run.output.at('metrics.jsonl')} has them all\n"
            )


def _open_wandb(run: TrackedRun) -> tuple[Log, Callable[[], None]]:
    import wandb

    # W&B reads WANDB_MODE by itself, and is online if nothing says otherwise.
    is_told = any(name in os.environ for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"))
    os.makedirs(run.folder(""), exist_ok=True)
    opened = wandb.init(
        mode=None if is_told else "offline",
        dir=run.folder(""),
        project=os.environ.get("WANDB_PROJECT", "sluice"),
        id=run.key,
        name=run.name,
        resume="allow",
        config=dict(run.config),
        settings=wandb.Settings(console="off", disable_git=True, save_code=False, silent=True),
    )
    # Steps come again where a run went back; W&B's own count may only rise.
    opened.define_metric("*", step_metric="step")

    def log(step: int, at: float, found: Mapping[str, float]) -> None:
        opened.log({"step": step, **found})

    return log, opened.finish


def _open_mlflow(run: TrackedRun) -> tuple[Log, Callable[[], None]]:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    place = os.environ.get("MLFLOW_TRACKING_URI")
    if place is None:
        # Its makers prefer a database, which needs a server or SQLAlchemy.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        place = f"file://{os.path.abspath(run.folder('mlflow'))}"
    client = MlflowClient(tracking_uri=place)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "sluice")
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    earlier = client.search_runs([experiment], filter_string=f"tags.`sluice.run` = '{run.key}'")
    if earlier:
        number = earlier[0].info.run_id
        client.update_run(number, status="RUNNING")
    else:
        number = client.create_run(experiment, tags={"sluice.run": run.key}, run_name=run.name).info.run_id
    # A parameter is written once; what changes from start to start is a tag.
    changing = {key: str(value) for key, value in run.config.items() if key in _OF_A_START}
    for key, value in changing.items():
        client.set_tag(number, key, value)
    held = client.get_run(number).data.params
    params = [(key, str(value)[:500]) for key, value in run.config.items() if key not in changing]
    for key, value in params:
        if held.get(key, value) != value:
            client.set_tag(number, key, value)
    for first in range(0, len(params), 100):
        some = [Param(key, value) for key, value in params[first : first + 100] if key not in held]
        client.log_batch(number, params=some)

    def log(step: int, at: float, found: Mapping[str, float]) -> None:
        # It refuses a batch for one name of other letters.
        named = {re.sub(r"[^\w\-. :/]", "_", key): value for key, value in found.items()}
        metrics = [Metric(key, value, int(1000 * at), step) for key, value in named.items()]
        for begin in range(0, len(metrics), 1000):
            client.log_batch(number, metrics=metrics[begin : begin + 1000])

    return log, lambda: client.set_terminated(number)


_OF_A_START: Final = frozenset({"lineage.attempt", "lineage.recipe_hash"})
_OPENERS: Final[Mapping[TrackerName, Callable[[TrackedRun], tuple[Log, Callable[[], None]]]]] = {
    "wandb": _open_wandb,
    "mlflow": _open_mlflow,
}


def dotted(table: Mapping[str, Any], above: str = "") -> dict[str, object]:
    """A table's values by dotted names; lists as they are, and URLs without what signs in."""
    found: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= dotted(value, f"{above}{name}.")
        else:
            found[above + name] = without_secrets(value) if isinstance(value, str) else value
    return found
