"""Whatever the layout, tracing finds the same rows, and they are those that were fed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.rows import RunRow, SegmentRow, ShardSpan
from lineage.trace.exposure import exposures, fold
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.training.training_runs import Run
from trainer.provenance.exposure import find_readings

SHARDS = {"web": [1700, 530], "books": [1111]}
SPANS = [
    ShardSpan(source, shard, start, 23)
    for source, lengths in SHARDS.items()
    for shard, length in enumerate(lengths)
    for start in range(0, length - 23, 61)
]

Row = tuple[int, int, int, int, bool]
"""Step, row, sequence, epoch, and whether it was applied."""


def layout(sizes: dict[str, int], **changes: Any) -> dict[str, Any]:
    """Changes to [train] that ask for a mesh of these sizes."""
    return {"parallel": sizes, **changes}


FAST = {
    "pipeline 2": layout({"pp": 2}),
    "context 2": layout({"cp": 2}),
    "experts 2": layout({"dp_shard": 2, "ep": 2}, model="moe-debug"),
}
LARGER = {
    "replicas 3": layout({"dp_replicate": 3}, zero=0),
    "zero 1 over 3": layout({"dp_shard": 3}, zero=1),
    "tensor parallel 2": layout({"tp": 2}),
    "fsdp 2 x pipeline 2 x tensor parallel 2": layout({"pp": 2, "dp_shard": 2, "tp": 2}),
    "fsdp 2 x context 2 x tensor parallel 2, ring": layout(
        {"cp": 2, "dp_shard": 2, "tp": 2}, context={"method": "ring"}
    ),
    "pipeline 2 x fsdp 2 x context 2 over experts 4": layout(
        {"pp": 2, "dp_shard": 2, "cp": 2, "ep": 4}, model="moe-debug"
    ),
}


def run_over(
    folder: Path, name: str, changes: dict[str, Any]
) -> tuple[list[set[Row]], set[tuple[int, int, int]]]:
    """What tracing tells of each span of a run in this layout, and the (step, row, sequence) that were
    recorded."""
    out = make_corpus(str(folder / f"{name} out"), SHARDS)
    output = folder / name
    # A skipped batch in the middle, and one that its loss makes not count.
    Run(
        data=out.url, output=output, changes={"skip": [[23, 24]], "faults": {"nan_at_step": 6}, **changes}
    ).start()
    store = Folder(out.url)
    runs = [RunRow(**row) for row in read_table(store, "training_runs").to_pylist()]
    segments = [SegmentRow(**row) for row in read_table(store, "training_segments").to_pylist()]
    (run,) = fold(runs, segments)
    told = [
        {(e.step, e.row, e.sequence, e.epoch, e.applied) for e in exposures(run, span, find_readings)}
        for span in SPANS
    ]
    rows = [row for file in (output / "batches").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert len(rows) == len({(row["step"], row["row"]) for row in rows})
    return told, {(row["step"], row["row"], row["sequence"]) for row in rows}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[set[Row]], set[tuple[int, int, int]]]:
    return run_over(tmp_path_factory.mktemp("alone"), "alone", {})


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGER)])
def test_every_layout_is_traced_to_the_rows_of_one_process(
    name: str, alone: tuple[list[set[Row]], set[tuple[int, int, int]]], tmp_path: Path
) -> None:
    told, recorded = run_over(tmp_path, name, (FAST | LARGER)[name])
    assert told == alone[0]
    assert recorded == alone[1]
    assert sum(map(len, told)) > len(SPANS)
    # Sequences 23 and 24 lie in step 3, and step 6 has no loss: neither changed a weight.
    assert {row[0] for rows in told for row in rows if not row[4]} == {3, 6}
    assert {row[:3] for rows in told for row in rows} <= recorded
