"""The exchange: every row reaches the reducer of its partition, once, whichever engine carries it."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.storage.folder import Folder
from pipeline.dedup.exchange import (
    PARTITION,
    Engine,
    Exchange,
    InPhases,
    InProcess,
    Partition,
    RowsJob,
    index_shares,
    into_shares,
    publish_share,
    reduce_partition,
    split,
)
from pipeline.recipe.tables import UnitKindTable
from pipeline.results.dedup_result import DedupCounts
from tests.support.outputs.runs import run_in

Task = Sequence[tuple[int, str]]


def rows_of(task: Task) -> pa.Table:
    numbers, values = [row[0] for row in task], [row[1] for row in task]
    return pa.table({PARTITION: pa.array(numbers, pa.int64()), "value": pa.array(values, pa.string())})


def keep(folder: Path, number: int, rows: pa.Table) -> DedupCounts:
    pq.write_table(rows, folder / f"{number}.parquet")
    return counted(len(rows))


def counted(num_rows: int) -> DedupCounts:
    """What `keep` counts; an exchange adds nothing to it."""
    return DedupCounts(num_edges=num_rows)


def exchange(folder: Path, tasks: Sequence[Task], num_partitions: int, **functions: Any) -> Exchange:
    functions = {"read": rows_of, "reduce": functools.partial(keep, folder), **functions}
    of_exchange = Folder(str(folder / "exchange"))
    return Exchange(name="met", folder=of_exchange, tasks=tasks, num_partitions=num_partitions, **functions)


def met(engine: Engine, tasks: Sequence[Task], num_partitions: int, folder: Path) -> dict[int, Counter[str]]:
    """What each partition's reducer was given."""
    counts = engine.run(exchange(folder, tasks, num_partitions))
    found = {n: Counter(pq.read_table(folder / f"{n}.parquet")["value"].to_pylist()) for n in counts}
    assert counts == {n: counted(values.total()) for n, values in found.items()}
    return found


def expected(tasks: Sequence[Task]) -> dict[int, Counter[str]]:
    found: dict[int, Counter[str]] = {}
    for task in tasks:
        for number, value in task:
            found.setdefault(number, Counter())[value] += 1
    return dict(sorted(found.items()))


TASKS = st.lists(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), max_size=8), max_size=5)


@given(TASKS)
def test_rows_meet_by_partition_in_one_process(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[Task]
) -> None:
    assert met(InProcess(), tasks, 5, tmp_path_factory.mktemp("met")) == expected(tasks)


def test_a_single_partition_needs_no_files(tmp_path: Path) -> None:
    tasks = [[(0, "a"), (0, "b")], [], [(0, "a")]]
    assert met(InProcess(), tasks, 1, tmp_path) == expected(tasks)
    assert met(InProcess(), [[]], 1, tmp_path) == {}


@given(st.lists(st.integers(-3, 3) | st.sampled_from([255, 256, 65_532, 65_533, 1 << 40]), max_size=20))
def test_splitting_loses_and_doubles_nothing(numbers: list[int]) -> None:
    table = pa.table(
        {PARTITION: pa.array(numbers, pa.int64()), "row": pa.array(range(len(numbers)), pa.int64())}
    )
    parts = list(split(table))
    assert all(part.column_names == ["row"] for _, part in parts), (
        "every row of a part would have the same number"
    )
    assert [number for number, _ in parts] == sorted(set(numbers))
    rows = sorted((row, number) for number, part in parts for row in part["row"].to_pylist())
    assert rows == list(enumerate(numbers))


def test_a_large_table_is_split_some_rows_at_a_time_and_keeps_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.dedup.exchange._SPLIT_BYTES", 64)
    table = pa.table(
        {PARTITION: pa.array([1, 0, 1] * 20, pa.int64()), "row": pa.array(range(60), pa.int64())}
    )
    parts = list(split(table))
    assert max(part.num_rows for _, part in parts) < 10
    rows: dict[int, list[int]] = defaultdict(list)
    for number, part in parts:
        rows[number] += part["row"].to_pylist()
    assert rows == {0: list(range(1, 60, 3)), 1: [row for row in range(60) if row % 3 != 1]}


@given(st.lists(st.integers(), max_size=40), st.integers(1, 12))
def test_tasks_share_files_in_their_order_and_no_more_files_than_the_bound(
    tasks: list[int], most: int
) -> None:
    shares = into_shares(tasks, most)
    assert [task for share in shares for task in share.tasks] == tasks
    assert len(shares) <= most and all(share.tasks for share in shares)
    keys = [share.key for share in shares]
    assert keys == sorted(set(keys))
    if len(tasks) <= most:
        assert [share.tasks for share in shares] == [(task,) for task in tasks], "a file of its own for each"


@given(TASKS, st.integers(1, 6))
def test_rows_meet_by_partition_however_many_tasks_share_a_file(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[Task], most: int
) -> None:
    folder = tmp_path_factory.mktemp("met")
    of_exchange = exchange(folder, tasks, 5)
    rows = RowsJob(folder=of_exchange.folder.url, read=of_exchange.read, num_partitions=5)
    for share in reversed(into_shares(tasks, most)):
        publish_share(rows, share)
    job = index_shares(of_exchange)
    assert len(job.keys) <= most
    reductions = {number: reduce_partition(job, Partition(number=number)) for number in range(5)}
    found = {
        number: Counter(pq.read_table(folder / f"{number}.parquet")["value"].to_pylist())
        for number, reduction in reductions.items()
        if reduction.has_rows
    }
    assert found == expected(tasks)
    assert {number: reduction.counts for number, reduction in reductions.items() if reduction.has_rows} == {
        number: counted(values.total()) for number, values in found.items()
    }


@pytest.fixture(scope="module")
def ray_with_this_module(small_ray: None) -> None:
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know this module


@pytest.mark.usefixtures("ray_with_this_module")
def test_ray_data_brings_the_same_rows_together(tmp_path: Path) -> None:
    tasks: list[Task] = [
        [(number * task % 7, f"{task}-{number}") for number in range(task * 3)] for task in range(9)
    ]
    for number, (of_case, partitions) in enumerate([(tasks, 7), ([[], []], 3), ([], 3)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert met(InPhases(run_in(folder), 4), of_case, partitions, folder) == expected(of_case)


def told(folder: Path, name: str) -> None:
    """Write down what the task that runs this reserves, and where it finds the object store."""
    import ray

    reserved = ray.get_runtime_context().get_assigned_resources()
    found = {"reserved": reserved, "endpoint": os.environ.get("AWS_ENDPOINT_URL")}
    (folder / f"{name}.json").write_text(json.dumps(found))


def read_telling(folder: Path, task: Task) -> pa.Table:
    told(folder, "read")
    return rows_of(task)


def reduce_telling(folder: Path, number: int, rows: pa.Table) -> DedupCounts:
    told(folder, "reduce")
    return keep(folder, number, rows)


@pytest.mark.usefixtures("ray_with_this_module")
def test_readers_and_reducers_reserve_what_the_stage_asks_for_and_know_the_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # the nodes were started without it
    read, reduce = (functools.partial(function, tmp_path) for function in (read_telling, reduce_telling))
    asked = exchange(tmp_path, [[(0, "a")]], 1, read=read, reduce=reduce)
    run = run_in(tmp_path, stages={"compare": UnitKindTable(cpus=2.0, resource="data")})
    assert InPhases(run).run(asked) == {0: counted(1)}
    for name in ("read", "reduce"):
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["endpoint"] == "http://127.0.0.1:9", name
        assert found["reserved"]["CPU"] == 2.0, name
        assert 0 < found["reserved"]["data"] < 0.01, name


def read_noting(folder: Path, task: Task) -> pa.Table:
    note(folder, f"read {task[0][1]}")
    return rows_of(task)


def reduce_noting(folder: Path, number: int, rows: pa.Table) -> DedupCounts:
    note(folder, f"reduce {number}")
    if number == 2 and not (folder / "whole").exists():
        raise InterruptedError("killed here")
    return keep(folder, number, rows)


def note(folder: Path, what: str) -> None:
    with (folder / "notes.txt").open("a") as notes:
        notes.write(f"{what}\n")


@pytest.mark.usefixtures("ray_with_this_module")
def test_an_exchange_that_was_broken_off_repeats_no_finished_piece(tmp_path: Path) -> None:
    tasks = [[(number, str(number)), (2, "all")] for number in range(4)]
    read, reduce = (functools.partial(function, tmp_path) for function in (read_noting, reduce_noting))
    one_at_a_time = InPhases(run_in(tmp_path, max_in_flight=1))
    broken = exchange(tmp_path, tasks, 4, read=read, reduce=reduce)
    with pytest.raises(InterruptedError):
        one_at_a_time.run(broken)
    (tmp_path / "whole").touch()
    assert one_at_a_time.run(broken) == {0: counted(1), 1: counted(1), 2: counted(5), 3: counted(1)}
    times = Counter((tmp_path / "notes.txt").read_text().splitlines())
    # Piece 3 may have begun before the end of piece 2 was known.
    assert times.pop("reduce 3") in (1, 2)
    assert times == {
        **{f"read {number}": 1 for number in range(4)},
        "reduce 0": 1,
        "reduce 1": 1,
        "reduce 2": 2,
    }
    one_at_a_time.clear(broken)
    assert not broken.folder.names()


@pytest.mark.usefixtures("ray_with_this_module")
def test_the_operators_of_an_exchange_are_called_after_it(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    InPhases(run).run(exchange(tmp_path, [[(0, "a")], [(1, "b")]], 3))
    assert [(stats.operator, stats.num_units) for stats in run.datasets] == [
        ("dedup.met.rows", 2),
        ("dedup.met", 3),
    ]
    assert [phase.name for phase in run.phases] == ["dedup.met.rows", "dedup.met"]
