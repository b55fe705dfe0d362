"""Training runs by their outputs: attempts, checkpoints, and what a rollback has set aside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from lineage.storage.folder import Folder
from lineage.storage.places import shown_place
from pipeline.inspect.trace.tracing import make_tracer


def runs_json(out: str, outputs: Sequence[str]) -> list[dict[str, Any]]:
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
        segments = known[name].segments if name in known else ()
        last: dict[int, int] = {}
        for segment in segments:
            reached = segment.first_step - 1 if segment.last_step is None else segment.last_step
            last[segment.attempt] = max(last.get(segment.attempt, -1), reached)
        folder = Folder(read_card(output).checkpoints)
        begun = attempts(output)
        setup = read_setup(output, begun[-1].number) if begun else None
        told = None if setup is None else setup.benchmarks
        found.append(
            {
                "run": name,
                "output": output.url,
                "attempts": [
                    {
                        "attempt": attempt.number,
                        "parent_attempt": attempt.parent,
                        "first_step": attempt.first_step,
                        "last_step": last.get(attempt.number),
                        "rollback": attempt.rollback,
                        "damaged": [asdict(each) for each in attempt.damaged],
                    }
                    for attempt in begun
                ],
                "checkpoints": [asdict(entry) for entry in checkpoints_of(output)],
                "set_aside": [
                    asdict(entry) | {"folder": folder.at(f"{SET_ASIDE}/{entry.name}")}
                    for entry in checkpoints_set_aside(folder)
                ],
                "damaged": [
                    asdict(entry) | {"folder": folder.at(f"{DAMAGED}/{entry.name}")}
                    for entry in damaged_checkpoints(folder)
                ],
                # As the newest attempt found it; null where that ended before it recorded it.
                "checked_against": None
                if told is None
                else [asdict(one) | {"out": of_out} for of_out, found_in in told.items() for one in found_in],
                "rollbacks": [
                    asdict(each) | {"ended": has_ended(output, each)} for each in rollbacks(output)
                ],
            }
        )
    return found


def run_lines(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The same for the terminal."""
    for run in runs:
        yield f"run {run['run']!r} in {shown_place(Folder(run['output']))}"
        for row in run["attempts"]:
            parent = (
                "the first weights" if row["parent_attempt"] is None else f"attempt {row['parent_attempt']}"
            )
            last = "no step recorded" if row["last_step"] is None else f"to step {row['last_step']}"
            back = "" if row["rollback"] is None else f", rollback {row['rollback']}"
            yield f"  attempt {row['attempt']}: from step {row['first_step']} of {parent}, {last}{back}"
            for each in row["damaged"]:
                yield f"    it went back before {each['name']}: {each['why']}"
        for row in run["rollbacks"]:
            if row["left_out"]:
                ranges = ", ".join(f"{first} to {last}" for first, last in row["left_out"])
                yield f"  rollback {row['number']}: back to step {row['step']}, and sequences {ranges} are left out"
        for row in run["checked_against"] or ():
            yield f"  data checked against {row['file']} ({row['digest']}, {row['ngram']}, ratio {row['ratio']:g})"
        for row in run["checkpoints"]:
            yield f"  checkpoint {row['name']}"
        for row in run["set_aside"]:
            yield f"  set aside {row['folder']}: undone, kept until step {row['step']} is done again"
        for row in run["damaged"]:
            yield f"  damaged {row['folder']}: kept until it is deleted by hand"
