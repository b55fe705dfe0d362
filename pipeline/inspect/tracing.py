"""Tracing with URL normalisation and training orders, which lineage does not import. Light: no torch, no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lineage.storage.folder import Folder
from lineage.trace.tracer import Functions, MoreRuns, Tracer


def make_tracer(out: str, version: int | None = None, runs: Sequence[str] = ()) -> Tracer:
    """A tracer with URL normalisation and training orders, and the runs whose facts lie in these training outputs."""
    from stages.steps.url import named_host, normalise_url
    from trainer.provenance.exposure import find_readings, locate_sequences

    functions = Functions(normalise=normalise_url, named_host=named_host, find=find_readings, locate=locate_sequences)
    more = MoreRuns()
    if runs:
        from trainer.provenance.facts import read_facts

        more = read_facts(runs, out)
    return Tracer(Folder(out), functions, version=version, more=more)


def exposures_of(out: str, doc_ids: Sequence[bytes]) -> list[dict[str, Any]]:
    """Each run that saw any of these placed documents: first and last step, how often, the checkpoint to go back to."""
    tracer = make_tracer(out)
    steps: dict[str, list[int]] = {}
    for history in tracer.histories(doc_ids):
        for exposure in history.exposures:
            if exposure.applied:
                steps.setdefault(exposure.run, []).append(exposure.step)
    if not steps:
        return []
    from trainer.huggingface.model_card import checkpoints_of

    outputs = {run.run: run.output for run in tracer.runs()}
    found = []
    for name, seen in sorted(steps.items()):
        kept = [checkpoint.step for checkpoint in checkpoints_of(Folder(outputs[name]))]
        found.append(
            {
                "run": name,
                "output": outputs[name],
                "first_step": min(seen),
                "last_step": max(seen),
                "num_exposures": len(seen),
                "last_checkpoint_before": max((step for step in kept if step <= min(seen)), default=None),
            }
        )
    return found
