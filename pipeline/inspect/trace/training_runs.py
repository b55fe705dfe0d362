"""Training runs by their outputs: attempts, checkpoints, and what a rollback has set aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lineage.index.checked_against import CheckedAgainst
from lineage.storage.folder import Folder
from lineage.storage.places import shown_place
from pipeline.inspect.trace.tracing import make_tracer

if TYPE_CHECKING:
    from trainer.attempts import Attempt
    from trainer.checkpoint.store import Checkpoint
    from trainer.recovery.rollbacks import Rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """A run by its training output. `last_steps`: by attempt the last step that is recorded of it; `set_aside` and
    `damaged`: checkpoints, each with its folder; `checked_against`: the benchmarks by output read, as the newest
    attempt found it, None where that ended before it recorded it; `rollbacks`: each with whether it has ended."""

    run: str | None
    output: Folder
    attempts: tuple[Attempt, ...]
    last_steps: Mapping[int, int]
    checkpoints: tuple[Checkpoint, ...]
    set_aside: tuple[tuple[Checkpoint, str], ...]
    damaged: tuple[tuple[Checkpoint, str], ...]
    checked_against: Mapping[str, Sequence[CheckedAgainst]] | None
    rollbacks: tuple[tuple[Rollback, bool], ...]

    def as_json(self) -> dict[str, object]:
        """As `sluice trace --runs --json` gives it."""
        checked = self.checked_against
        return {
            "run": self.run,
            "output": self.output.url,
            "attempts": [
                {
                    "attempt": attempt.number,
                    "parent_attempt": attempt.parent,
                    "first_step": attempt.first_step,
                    "last_step": self.last_steps.get(attempt.number),
                    "rollback": attempt.rollback,
                    "damaged": [asdict(each) for each in attempt.damaged],
                }
                for attempt in self.attempts
            ],
            "checkpoints": [asdict(entry) for entry in self.checkpoints],
            "set_aside": [asdict(entry) | {"folder": folder} for entry, folder in self.set_aside],
            "damaged": [asdict(entry) | {"folder": folder} for entry, folder in self.damaged],
            "checked_against": None
            if checked is None
            else [asdict(one) | {"out": out} for out, found in checked.items() for one in found],
            "rollbacks": [asdict(each) | {"ended": ended} for each, ended in self.rollbacks],
        }

    def lines(self) -> Iterator[str]:
        """The same for the terminal."""
        yield f"run {self.run!r} in {shown_place(self.output)}"
        for attempt in self.attempts:
            parent = "the first weights" if attempt.parent is None else f"attempt {attempt.parent}"
            step = self.last_steps.get(attempt.number)
            last = "no step recorded" if step is None else f"to step {step}"
            back = "" if attempt.rollback is None else f", rollback {attempt.rollback}"
            yield f"  attempt {attempt.number}: from step {attempt.first_step} of {parent}, {last}{back}"
            for each in attempt.damaged:
                yield f"    it went back before {each.name}: {each.why}"
        for back_to, _ in self.rollbacks:
            if back_to.left_out:
                ranges = ", ".join(f"{first} to {last_one}" for first, last_one in back_to.left_out)
                yield (
                    f"  rollback {back_to.number}: back to step {back_to.step}, and sequences {ranges} are left out"
                )
        for found in (self.checked_against or {}).values():
            for one in found:
                yield f"  data checked against {one.file} ({one.digest}, {one.ngram}, ratio {one.ratio:g})"
        for entry in self.checkpoints:
            yield f"  checkpoint {entry.name}"
        for entry, folder in self.set_aside:
            yield f"  set aside {folder}: undone, kept until step {entry.step} is done again"
        for _, folder in self.damaged:
            yield f"  damaged {folder}: kept until it is deleted by hand"


def run_histories(out: str, outputs: Sequence[str]) -> list[RunHistory]:
    """The runs at these training outputs that read `out`. StorageError where a folder has no facts of a
    run."""
    from trainer.attempts import attempts
    from trainer.checkpoint.store import DAMAGED, SET_ASIDE, checkpoints_set_aside, damaged_checkpoints
    from trainer.huggingface.model_card import checkpoints_of, read_card
    from trainer.provenance.facts import owner_of
    from trainer.provenance.setup import read_setup
    from trainer.recovery.rollbacks import has_ended, rollbacks

    known = {run.run: run for run in make_tracer(out, None, outputs).runs()}
    found = []
    for url in outputs:
        output = Folder(url)
        name = owner_of(output)
        last: dict[int, int] = {}
        for segment in known[name].segments if name in known else ():
            reached = segment.first_step - 1 if segment.last_step is None else segment.last_step
            last[segment.attempt] = max(last.get(segment.attempt, -1), reached)
        folder = Folder(read_card(output).checkpoints)
        begun = tuple(attempts(output))
        setup = read_setup(output, begun[-1].number) if begun else None
        found.append(
            RunHistory(
                run=name,
                output=output,
                attempts=begun,
                last_steps=last,
                checkpoints=tuple(checkpoints_of(output)),
                set_aside=tuple(
                    (entry, folder.at(f"{SET_ASIDE}/{entry.name}")) for entry in checkpoints_set_aside(folder)
                ),
                damaged=tuple(
                    (entry, folder.at(f"{DAMAGED}/{entry.name}")) for entry in damaged_checkpoints(folder)
                ),
                checked_against=None if setup is None else setup.benchmarks,
                rollbacks=tuple((each, has_ended(output, each)) for each in rollbacks(output)),
            )
        )
    return found
