"""What a run was fed of shards that an epoch reads several times, or never, is what lineage tells of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.store.rows import RunRow, SegmentRow, ShardSpan
from lineage.trace.exposure import exposures, fold
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import ChildFailedError
from tests.support.training.training_runs import Run
from trainer.provenance.exposure import find_readings

LENGTHS = [330, 200, 100]
REPEATS = [1, 3, 0]
SEQUENCES = 11 + 3 * 7
"""Of 32 tokens, in an epoch."""


def test_a_run_that_was_killed_reads_each_shard_as_often_as_the_index_says(tmp_path: Path) -> None:
    out = make_corpus(str(tmp_path / "out"), {"web": LENGTHS}, repeats={"web": REPEATS})
    run = Run(data=out.url, output=tmp_path / "run", changes={"workers": 2})
    run.start_and_kill(7)
    run.start()
    newest: dict[tuple[int, int], dict[str, int]] = {}
    for file in sorted((run.output / "batches").glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            place = row["step"], row["row"]
            if place not in newest or row["attempt"] >= newest[place]["attempt"]:
                newest[place] = row
    assert len(newest) == 12 * 7 > 2 * SEQUENCES
    for epoch in (0, 1):
        fed = [row for row in newest.values() if row["epoch"] == epoch]
        read = Counter((row["shard"], row["start"]) for row in fed)
        assert len(fed) == SEQUENCES and all(num == REPEATS[shard] for (shard, _), num in read.items())
        assert {shard for shard, _ in read} == {0, 1}

    folder = Folder(out.url)
    runs = [RunRow(**row) for row in read_table(folder, "training_runs").to_pylist()]
    segments = [SegmentRow(**row) for row in read_table(folder, "training_segments").to_pylist()]
    [training] = fold(runs, segments)
    for shard, length in enumerate(LENGTHS):
        told = exposures(training, ShardSpan("web", shard, 0, length), find_readings, frozenset())
        applied = {(each.step, each.row) for each in told if each.applied}
        assert applied == {place for place, row in newest.items() if row["shard"] == shard}


def test_a_run_does_not_go_on_where_shards_are_read_another_number_of_times(tmp_path: Path) -> None:
    make_corpus(str(tmp_path / "out"), {"web": LENGTHS}, repeats={"web": REPEATS})
    run = Run(data=str(tmp_path / "out"), output=tmp_path / "run", changes={"steps": 4})
    run.start()
    (tmp_path / "out").rename(tmp_path / "before")
    make_corpus(str(tmp_path / "out"), {"web": LENGTHS}, repeats={"web": [1, 2, 0]})
    with pytest.raises(
        ChildFailedError, match=r"train\.data: an epoch reads shards of source web another number"
    ):
        run.start(steps=8)
