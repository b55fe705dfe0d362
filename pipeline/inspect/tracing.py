"""Tracing with URL normalisation and training orders, which lineage does not import. Light: no torch, no
Ray."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.trace.exposure import TrainingRun
from lineage.trace.tracer import Functions, MoreRuns, Tracer

UNREADABLE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What reading a run's output raises: storage OSError, JSON that is not what training wrote any of the
others."""


def make_tracer(out: str, version: int | None = None, runs: Sequence[str] = ()) -> Tracer:
    """A tracer with URL normalisation and training orders, and the runs whose facts lie in these training
    outputs."""
    more = MoreRuns()
    if runs:
        from trainer.provenance.reached import read_facts

        more = read_facts(runs, out)
    return _tracer(out, version, more)


def _tracer(out: str, version: int | None, more: MoreRuns) -> Tracer:
    from trainer.provenance.exposure import find_readings, locate_sequences

    functions = Functions(find=find_readings, locate=locate_sequences)
    return Tracer(Folder(out), functions, version=version, more=more)


def exposures_of(out: str, doc_ids: Sequence[bytes], purge_id: str | None = None) -> list[dict[str, Any]]:
    """Each run that saw any of these placed documents: first and last step, how often, the checkpoint to go
    back to, and what a replay from there costs (`trainer/replay/price.py`; null where the run's output cannot
    be read). `purge_id`: the purge that has taken them, which is none that waits beside it. Steps since a
    run's last checkpoint, which the store does not have yet, are counted where its output can be read.

    `last_checkpoint_before` is null where none is kept, and where it is unknown: `last_checkpoint_unknown`
    then says why. A purge goes on without the output of a run, and its account too."""
    tracer = _tracer(out, None, facts_of(out, (run.output for run in make_tracer(out).runs())))
    steps: dict[str, list[int]] = {}
    for history in tracer.histories(doc_ids):
        for exposure in history.exposures:
            if exposure.applied:
                steps.setdefault(exposure.run, []).append(exposure.step)
    if not steps:
        return []
    runs = {run.run: run for run in tracer.runs()}
    outputs = {name: run.output for name, run in runs.items()}
    return [
        {
            "run": name,
            "output": outputs[name],
            "first_step": min(seen),
            "last_step": max(seen),
            "num_exposures": len(seen),
            **_last_checkpoint(outputs[name], min(seen)),
            "replay": _price(out, runs[name], min(seen), purge_id),
        }
        for name, seen in sorted(steps.items())
    ]


def facts_of(out: str, outputs: Iterable[str]) -> MoreRuns:
    """What those of these training outputs that can be read say about `out`."""
    from trainer.provenance.reached import read_facts

    found: list[MoreRuns] = []
    for output in outputs:
        with suppress(*UNREADABLE):
            found.append(read_facts([output], out))
    return MoreRuns(
        runs=[run for more in found for run in more.runs],
        segments=[segment for more in found for segment in more.segments],
    )


def _last_checkpoint(output: str, step: int) -> dict[str, Any]:
    """The newest checkpoint of a run with at most `step` steps done, or why it is unknown."""
    kept, unknown = known_checkpoints(output)
    before = max((done for done in kept if done <= step), default=None)
    return {"last_checkpoint_before": before, "last_checkpoint_unknown": unknown}


def known_checkpoints(output: str) -> tuple[list[int], str | None]:
    """The steps done at each checkpoint of a run that is there, or none and why that is unknown."""
    try:
        return _kept_checkpoints(Folder(output)), None
    except UNREADABLE as error:
        reason = (
            str(error)
            if isinstance(error, (OSError, ValueError))
            else f"not as training writes it: {error!r}"
        )
        return [], f"{output} cannot be read ({reason})"


def _price(out: str, run: TrainingRun, first_step: int, purge_id: str | None) -> dict[str, Any] | None:
    """What it costs `run` to leave the documents out again; None where its output cannot be read."""
    from trainer.replay.price import price_of
    from trainer.replay.readings import find_purges

    try:
        kept = _kept_checkpoints(Folder(run.output))
        before = [
            replace(purged, purges=tuple(purge for purge in purged.purges if purge.purge_id != purge_id))
            for purged in find_purges([out], ["all"])
        ]
        return asdict(price_of(run, kept, first_step, before[0] if before else None))
    except (*UNREADABLE, RecipeError):
        return None


def _kept_checkpoints(output: Folder) -> list[int]:
    """The steps done at each checkpoint that is there; one of `UNREADABLE` where that cannot be known."""
    from trainer.huggingface.model_card import checkpoints_of, read_card

    # A run that has fed a step has a model.json, and a folder of checkpoints apart from its output has a file
    # that names the run. Without them the files are gone, or lie on another host.
    checkpoints = Folder(read_card(output).checkpoints)
    if not checkpoints.url.startswith(f"{output.url}/") and not checkpoints.names():
        raise FileNotFoundError(f"nothing lies in its folder of checkpoints, {checkpoints.url}")
    return [checkpoint.step for checkpoint in checkpoints_of(output)]
