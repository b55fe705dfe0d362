"""The traces of a run's output, or exports of Nsight Systems."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lineage.storage.folder import Folder, split
from trainer.evidence.profiles.nsight import read_nsight
from trainer.evidence.profiles.rank_trace import RankTrace, TraceError
from trainer.evidence.profiles.torch_trace import read_torch_trace
from trainer.telemetry.trace_file import FOLDER, trace_name

_NAME: Final = re.compile(rf"{FOLDER}/rank-(\d+)\.attempt-(\d+)\.json\.gz")
_NSIGHT: Final = ".sqlite"
TORCH: Final = "torch.profiler"


class Traces(NamedTuple):
    """Those of all ranks, of which attempt (None: the files do not say), and the tool that wrote them."""

    traces: Sequence[RankTrace]
    attempt: int | None
    tool: str


def read_traces(output: Folder, attempt: int | None = None, nsight: Sequence[str] = ()) -> Traces:
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
        return Traces(_exported(exports), attempt, "Nsight Systems")
    chosen = attempts[-1] if attempt is None else attempt
    if chosen not in attempts:
        known = ", ".join(map(str, attempts))
        raise TraceError(f"attempt {chosen} of {output.url} left no trace: expected one of {known}")
    ranks = sorted(int(match[1]) for match in matches if int(match[2]) == chosen)
    return Traces([_read(output, trace_name(rank, chosen), rank) for rank in ranks], chosen, TORCH)


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
