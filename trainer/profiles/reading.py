"""The traces of a run's output, or exports of Nsight Systems, as one profile."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lineage.storage.folder import Folder, split
from trainer.options import TrainRecipe
from trainer.profiles.expected import Expected, device_of, expected_of
from trainer.profiles.nsight import read_nsight
from trainer.profiles.profile import Profile, profile_of
from trainer.profiles.rank_trace import RankTrace, TraceError
from trainer.profiles.torch_trace import read_torch_trace
from trainer.provenance.setup import read_recipe
from trainer.telemetry.trace_file import FOLDER, trace_name

_NAME: Final = re.compile(rf"{FOLDER}/rank-(\d+)\.attempt-(\d+)\.json\.gz")
_NSIGHT: Final = ".sqlite"


def read_profile(output: Folder, attempt: int | None = None, nsight: Sequence[str] = ()) -> Profile:
    """Of the traces of `attempt`, or of the newest one that left any; of the exports in `nsight`, or of those
    that lie beside the traces where there is no trace. TraceError where there is none, or one cannot be
    read."""
    names = output.names(FOLDER)
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    attempts = sorted({int(match[2]) for match in matches})
    exports = list(nsight) or [output.at(name) for name in names if name.endswith(_NSIGHT)]
    if nsight or not attempts:
        if not exports:
            raise TraceError(
                f"{output.url} holds no trace: expected a run with train.profile = [first, last], or an export"
                f" of Nsight Systems (nsys export --type sqlite) in {output.at(FOLDER)} or named with --nsight"
            )
        return _profile(output, attempt, _exported(exports), "Nsight Systems")
    chosen = attempts[-1] if attempt is None else attempt
    if chosen not in attempts:
        known = ", ".join(map(str, attempts))
        raise TraceError(f"attempt {chosen} of {output.url} left no trace: expected one of {known}")
    ranks = sorted(int(match[1]) for match in matches if int(match[2]) == chosen)
    traces = [_read(output, trace_name(rank, chosen), rank) for rank in ranks]
    return _profile(output, chosen, traces, "torch.profiler")


def _read(output: Folder, name: str, rank: int) -> RankTrace:
    try:
        return read_torch_trace(output.read(name), rank)
    except TraceError as error:
        raise TraceError(f"{output.at(name)}: {error}") from error


def _exported(places: Sequence[str]) -> list[RankTrace]:
    traces: list[RankTrace] = []
    with tempfile.TemporaryDirectory(prefix="sluice-nsight-") as scratch:
        for place in places:
            folder, name = split(place)
            copy = Path(scratch) / "export.sqlite"
            try:
                copy.write_bytes(folder.read(name))
                traces += read_nsight(copy, len(traces))
            except (OSError, TraceError) as error:
                raise TraceError(f"{place}: {error}") from error
    return traces


def _profile(output: Folder, attempt: int | None, traces: Sequence[RankTrace], tool: str) -> Profile:
    recipe = _recipe(output, attempt)
    planned, gpu = device_of(recipe, traces[0].device)
    expected: Expected | str = (
        "the output holds no recipe of this attempt" if planned is None else expected_of(planned)
    )
    notes = []
    if isinstance(expected, str):
        notes.append(f"Expected: not known, {expected}")
    elif gpu is None:
        notes.append(
            f"The plan is for {expected.device} (plan.gpu) and the traces are of a {traces[0].device}: compare"
            " bytes and not seconds. sluice plan --measure and plan.measured give the figures of this device"
        )
    if gpu is None:
        notes.append(f"Roofline: the peaks of {traces[0].device} are not known (plan.measured gives them)")
    if tool != "torch.profiler":
        notes.append("Nsight Systems records no shapes: the roofline of its kernels is not known")
    return profile_of(
        traces,
        gpu,
        expected if isinstance(expected, Expected) else None,
        output=output.url,
        attempt=attempt,
        tool=tool,
        notes=notes,
    )


def _recipe(output: Folder, attempt: int | None) -> TrainRecipe | None:
    from trainer.attempts import attempts

    begun = attempts(output)
    number = attempt if attempt is not None else begun[-1].number if begun else None
    return None if number is None else read_recipe(output, number)
