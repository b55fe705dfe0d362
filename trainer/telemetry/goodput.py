"""Goodput: what share of a run's wall time was useful steps, over all its attempts, and where the rest went.

Everything is read from what a run leaves on disk, so an attempt that was killed with SIGKILL counts too: when
each attempt began and how it ended (`trainer/attempts.py`), and the lines of metrics.jsonl. No torch here.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from lineage.storage.folder import Folder
from trainer.attempts import Attempt, AttemptEnd, attempt_ends, attempts
from trainer.telemetry.metrics_file import each_line, metrics_size
from trainer.telemetry.step_report import StepReport

_log = logging.getLogger(__name__)

Part = Literal[
    "steps", "data wait", "checkpoint stall", "evaluation", "start", "lost work", "recovery", "waiting for nodes",
    "other",
]  # fmt: skip
PARTS: Final[Mapping[Part, str]] = {
    "steps": "steps that count, without their waiting for data and their checkpoints",
    "data wait": "these steps' waiting for data",
    "checkpoint stall": "what checkpoints stopped these steps for, and the wait for the last one at an attempt's end",
    "evaluation": "held-out losses and scores",
    "start": "from an attempt's start to its first step, where the attempt before ended in order",
    "lost work": "steps done again later or skipped, and what was begun of a step when an attempt failed",
    "recovery": "from the start of an attempt to its first step, where the attempt before it failed",
    "waiting for nodes": "between a failure and the start of the next attempt's processes",
    "other": "between steps: reports and records",
}
"""The parts of a run's wall time; together they are all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Seconds of each part. `num_failures`: attempts that ended otherwise than done or asked to.
    `stopped_seconds`: between an end in order and the next start, which is no part of the wall time: nothing
    was held meanwhile."""

    seconds: Mapping[Part, float]
    num_attempts: int
    num_failures: int
    stopped_seconds: float

    @property
    def wall_seconds(self) -> float:
        """All parts together."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """Of the wall time that which was useful steps; 0 where nothing has passed."""
        return self.seconds["steps"] / self.wall_seconds if self.wall_seconds else 0.0

    @property
    def mean_seconds_between_failures(self) -> float | None:
        """None where nothing has failed."""
        return self.wall_seconds / self.num_failures if self.num_failures else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
    """One attempt: seconds since the epoch, and seconds of each part, with what passed before the next one
    began; `how` it ended: `open` where it is still running, or nothing is known."""

    number: int
    first_step: int
    num_steps: int
    began_at: float
    ended_at: float
    how: Literal["finished", "stopped", "failed", "open"]
    seconds: Mapping[Part, float]
    stopped_seconds: float


class ReportedStep(NamedTuple):
    """What of a step's report the account takes; `at`: None of a batch passed over unseen."""

    attempt: int
    step: int
    at: float | None
    seconds: float
    data_wait: float
    stall: float
    evaluation: float
    skipped: bool

    @staticmethod
    def of(report: StepReport) -> ReportedStep:
        """From a report."""
        return ReportedStep(
            attempt=report.attempt,
            step=report.step,
            at=report.at,
            seconds=report.seconds,
            data_wait=report.data_wait_seconds,
            stall=report.phases.get("checkpoint", 0.0),
            evaluation=report.evaluation_seconds,
            skipped=report.skipped is not None,
        )

    @staticmethod
    def from_json(line: bytes) -> ReportedStep:
        """From a line of metrics.jsonl: a run has a million, of which these few numbers are wanted."""
        row = json.loads(line)
        return ReportedStep(
            attempt=row["attempt"],
            step=row["step"],
            at=row.get("at"),
            seconds=row["seconds"],
            data_wait=row["data_wait_seconds"],
            stall=row["phases"].get("checkpoint", 0.0),
            evaluation=row.get("evaluation_seconds", 0.0),
            skipped=row["skipped"],
        )


@dataclass(slots=True, kw_only=True)
class _Sums:
    """What the reports of one attempt add up to: seconds of its parts, of all its steps, and when the first
    one began and the last one ended."""

    parts: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    step_seconds: float = 0.0
    num_steps: int = 0
    first_began_at: float | None = None
    last_ended_at: float | None = None

    def add(self, times: ReportedStep, *, counts: bool) -> None:
        """Take a step; `counts`: it is part of the run, and no later attempt does it again."""
        if times.at is None:
            return
        if self.first_began_at is None:
            self.first_began_at = times.at - times.seconds
        self.last_ended_at = times.at
        self.step_seconds += times.seconds
        self.num_steps += 1
        if not counts or times.skipped:
            self.parts["lost work"] += times.seconds
        else:
            self.parts["data wait"] += times.data_wait
            self.parts["checkpoint stall"] += times.stall
            self.parts["steps"] += times.seconds - times.data_wait - times.stall
        self.parts["evaluation" if counts else "lost work"] += times.evaluation


class GoodputAccount:
    """The account of a run: of reports, attempt by attempt, in any number of reads. Memory in the number of
    attempts."""

    def __init__(self, begun: Sequence[Attempt], ends: Mapping[int, AttemptEnd]) -> None:
        self._begun = list(begun)
        self._ends = dict(ends)
        self._sums = {attempt.number: _Sums() for attempt in self._begun}
        # A step of an attempt counts where all later attempts began behind it.
        self._end_step: dict[int, float] = {}
        least = float("inf")
        for attempt in reversed(begun):
            self._end_step[attempt.number] = least
            least = min(least, attempt.first_step)

    def end(self, number: int, how: AttemptEnd) -> None:
        """Note how an attempt ended."""
        self._ends[number] = how

    def add(self, steps: Iterable[ReportedStep]) -> None:
        """Take these steps."""
        for times in steps:
            if times.attempt in self._sums:
                self._sums[times.attempt].add(times, counts=times.step < self._end_step[times.attempt])

    def spans(self, now: float | None = None) -> Iterator[AttemptSpan]:
        """The attempts in turn, up to `now` (seconds since the epoch), or to the last thing that is known of
        the run. Clocks of two machines may differ: what would be negative is nothing."""
        after_failure = False
        for attempt, later in pairwise([*self._begun, None]):
            assert attempt is not None
            sums, end = self._sums[attempt.number], self._ends.get(attempt.number)
            next_began_at = now if later is None else later.began_at
            ended_at = self._ended_at(attempt, end, next_began_at)
            failed = end.how == "failed" if end is not None else later is not None
            first = ended_at if sums.first_began_at is None else sums.first_began_at
            last = ended_at if sums.last_ended_at is None else sums.last_ended_at
            parts: dict[Part, float] = dict.fromkeys(PARTS, 0.0) | sums.parts
            parts["recovery" if after_failure else "start"] += max(0.0, first - attempt.began_at)
            tail = max(0.0, ended_at - last)
            if failed:
                parts["lost work"] += tail
            elif end is not None:
                parts["checkpoint stall"] += min(tail, end.saving_seconds)
            parts["other"] = max(0.0, ended_at - attempt.began_at - sum(parts.values()))
            gap = 0.0 if later is None else max(0.0, later.began_at - ended_at)
            if failed:
                parts["waiting for nodes"] += gap
            yield AttemptSpan(
                number=attempt.number,
                first_step=attempt.first_step,
                num_steps=sums.num_steps,
                began_at=attempt.began_at,
                ended_at=ended_at,
                how="failed" if failed else end.how if end is not None else "open",
                seconds=parts,
                stopped_seconds=0.0 if failed else gap,
            )
            after_failure = failed

    def at(self, now: float | None = None) -> Goodput:
        """All attempts together, up to `now` as of `spans`."""
        spans = list(self.spans(now))
        return Goodput(
            seconds={part: sum(span.seconds[part] for span in spans) for part in PARTS},
            num_attempts=len(spans),
            num_failures=sum(span.how == "failed" for span in spans),
            stopped_seconds=sum(span.stopped_seconds for span in spans),
        )

    def _ended_at(self, attempt: Attempt, end: AttemptEnd | None, limit: float | None) -> float:
        """When an attempt ended. A killed one says nothing: it is taken to have been in the middle of the
        step after its last report, or, without one, to have been starting for as long as the slowest other
        start took."""
        sums = self._sums[attempt.number]
        last = sums.last_ended_at
        began = attempt.began_at
        if end is not None:
            return max(end.at, last or began)
        newest = attempt.number == self._begun[-1].number
        if newest:
            return max(last or began, limit if limit is not None else 0.0)
        assert limit is not None
        if last is not None:
            return max(last, min(limit, last + sums.step_seconds / sums.num_steps / 2))
        starts = [
            first - other.began_at
            for other in self._begun
            if (first := self._sums[other.number].first_began_at) is not None
        ]
        return max(began, min(limit, began + max(starts, default=limit - began)))


def read_account(output: Folder) -> GoodputAccount:
    """The account of a run, with all that lies in its output."""
    account = GoodputAccount(attempts(output), attempt_ends(output))
    account.add(map(ReportedStep.from_json, each_line(output)))
    return account


class LiveGoodput:
    """The account of a run while its newest attempt runs. What earlier ones left is read in a thread, which
    for a long run takes a while: neither a start nor a recovery waits for it."""

    def __init__(self, output: Folder) -> None:
        self._account = GoodputAccount(attempts(output), attempt_ends(output))
        self._since: list[ReportedStep] = []
        size = metrics_size(output)  # what this attempt writes is added as it is reported
        self._reader = threading.Thread(target=self._read, args=(output, size), name="goodput", daemon=True)
        self._reader.start()

    def _read(self, output: Folder, size: int) -> None:
        try:
            self._account.add(map(ReportedStep.from_json, each_line(output, size)))
        except OSError as error:  # no reason to end a training; `sluice train goodput` reads it all again
            _log.warning(
                "what earlier attempts did cannot be read, and is no part of the goodput told: %s", error
            )

    def until_now(self) -> Goodput:
        """What is known of the run so far. Waits for what earlier attempts left."""
        self._reader.join()
        self._account.add(self._since)
        self._since.clear()
        return self._account.at()

    def ended(self, number: int, how: AttemptEnd) -> Goodput:
        """What the run came to with this end of its newest attempt."""
        self._account.end(number, how)
        return self.until_now()

    def noted(self, report: StepReport, now: float) -> StepReport:
        """Take a report; gives it with the parts up to now where it compares ranks (every tenth step), once
        what earlier attempts left has been read."""
        self._since.append(ReportedStep.of(report))
        if not report.ranks or self._reader.is_alive():
            return report
        self.until_now()
        parts = {str(part): seconds for part, seconds in self._account.at(now).seconds.items()}
        return dataclasses.replace(report, goodput=parts)


def goodput_json(account: GoodputAccount) -> dict[str, object]:
    """The account as plain values."""
    found = account.at()
    return {
        "goodput": found.share,
        "wall_seconds": found.wall_seconds,
        "seconds": dict(found.seconds),
        "stopped_seconds": found.stopped_seconds,
        "num_failures": found.num_failures,
        "mean_seconds_between_failures": found.mean_seconds_between_failures,
        "attempts": [dataclasses.asdict(span) for span in account.spans()],
    }


def describe_goodput(found: Goodput) -> Iterator[str]:
    """Lines for the terminal: the largest parts first."""
    wall = found.wall_seconds
    attempts = (
        f"{found.num_attempts} attempt{'s' if found.num_attempts != 1 else ''}, {found.num_failures} failed"
    )
    yield f"goodput {found.share:.1%} of {wall:,.1f} s ({attempts})"
    for part, seconds in sorted(found.seconds.items(), key=lambda one: -one[1]):
        if seconds:
            yield f"  {part:<18} {seconds:12,.1f} s  {seconds / wall:6.1%}"
