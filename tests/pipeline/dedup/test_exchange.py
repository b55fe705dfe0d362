"""The exchange: every row reaches the reducer of its partition, once, whichever engine carries it."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cluster.tasks import TaskResources
from pipeline.dedup.exchange import PARTITION, Engine, Exchange, InProcess, RayData, split

Task = Sequence[tuple[int, str]]


def rows_of(task: Task) -> pa.Table:
    numbers, values = [row[0] for row in task], [row[1] for row in task]
    return pa.table({PARTITION: pa.array(numbers, pa.int64()), "value": pa.array(values, pa.string())})


def keep(folder: Path, number: int, rows: pa.Table) -> dict[str, int]:
    assert set(rows[PARTITION].to_pylist()) == {number}
    pq.write_table(rows, folder / f"{number}.parquet")
    return {"rows": len(rows)}


def met(engine: Engine, tasks: Sequence[Task], num_partitions: int, folder: Path) -> dict[int, Counter[str]]:
    """What each partition's reducer was given."""
    reduce = functools.partial(keep, folder)
    counts = engine.run(Exchange(tasks=tasks, read=rows_of, reduce=reduce, num_partitions=num_partitions))
    found = {n: Counter(pq.read_table(folder / f"{n}.parquet")["value"].to_pylist()) for n in counts}
    assert {n: c["rows"] for n, c in counts.items()} == {n: values.total() for n, values in found.items()}
    return found


def expected(tasks: Sequence[Task]) -> dict[int, Counter[str]]:
    found: dict[int, Counter[str]] = {}
    for task in tasks:
        for number, value in task:
            found.setdefault(number, Counter())[value] += 1
    return dict(sorted(found.items()))


TASKS = st.lists(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), max_size=8), max_size=5)


@given(TASKS)
def test_rows_meet_by_partition_in_one_process(tmp_path_factory: pytest.TempPathFactory, tasks: list[Task]) -> None:
    assert met(InProcess(), tasks, 5, tmp_path_factory.mktemp("met")) == expected(tasks)


def test_a_single_partition_needs_no_files(tmp_path: Path) -> None:
    tasks = [[(0, "a"), (0, "b")], [], [(0, "a")]]
    assert met(InProcess(), tasks, 1, tmp_path) == expected(tasks)
    assert met(InProcess(), [[]], 1, tmp_path) == {}


@given(st.lists(st.integers(-3, 3), max_size=20))
def test_splitting_loses_and_doubles_nothing(numbers: list[int]) -> None:
    table = pa.table({PARTITION: pa.array(numbers, pa.int64()), "row": pa.array(range(len(numbers)), pa.int64())})
    parts = split(table)
    assert [number for number, _ in parts] == sorted(set(numbers))
    rows = sorted((row, number) for number, part in parts for row in part["row"].to_pylist())
    assert rows == list(enumerate(numbers))


@pytest.mark.slow
def test_ray_data_brings_the_same_rows_together(tmp_path: Path, small_ray: None) -> None:
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know this module
    tasks: list[Task] = [[(number * task % 7, f"{task}-{number}") for number in range(task * 3)] for task in range(9)]
    assert met(RayData(TaskResources()), tasks, 7, tmp_path) == expected(tasks)
    assert met(RayData(TaskResources()), [[], []], 3, tmp_path) == {}
    assert met(RayData(TaskResources()), [], 3, tmp_path) == {}


def telling(folder: Path, name: str) -> None:
    """Write down what the task that runs this reserves, and where it finds the object store."""
    import ray

    reserved = ray.get_runtime_context().get_assigned_resources()
    told = {"reserved": reserved, "endpoint": os.environ.get("AWS_ENDPOINT_URL")}
    (folder / f"{name}.json").write_text(json.dumps(told))


def read_telling(folder: Path, task: Task) -> pa.Table:
    telling(folder, "read")
    return rows_of(task)


def reduce_telling(folder: Path, number: int, rows: pa.Table) -> dict[str, int]:
    telling(folder, "reduce")
    return keep(folder, number, rows)


@pytest.mark.slow
def test_readers_and_reducers_reserve_what_the_stage_asks_for_and_know_the_object_store(
    tmp_path: Path, small_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # the nodes were started without it
    read, reduce = (functools.partial(told, tmp_path) for told in (read_telling, reduce_telling))
    exchange = Exchange(tasks=[[(0, "a")]], read=read, reduce=reduce, num_partitions=1)
    assert RayData(TaskResources(cpus=2.0, resource="data")).run(exchange) == {0: {"rows": 1}}
    for name in ("read", "reduce"):
        told = json.loads((tmp_path / f"{name}.json").read_text())
        assert told["endpoint"] == "http://127.0.0.1:9", name
        assert told["reserved"]["CPU"] == 2.0, name
        assert 0 < told["reserved"]["data"] < 0.01, name
