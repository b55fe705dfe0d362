"""The store in an object store, behind a local server that speaks S3: the same facts, exactly once, traced
alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lineage.storage import clients as storage
from lineage.storage.folder import Folder, filesystem
from lineage.store.delta import append, read_table
from lineage.store.queries.sql import query
from lineage.trace.tracer import Functions, Tracer
from tests.support.outputs.logical_digest import logical_digest
from tests.support.outputs.made_store import (
    NUM,
    ArithmeticOrder,
    doc_id,
    make_store,
    purge,
    segment_row,
    table_of,
    train,
)
from tests.support.stores.s3_process import s3_process


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """An empty folder in a bucket."""
    with s3_process() as there:
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        storage._filesystem.cache_clear()
        filesystem("s3://lineage-test").mkdir("lineage-test")
        yield Folder("s3://lineage-test/out")
        storage._filesystem.cache_clear()


@pytest.mark.slow
def test_a_store_on_s3_says_what_the_same_store_on_disk_says(
    bucket: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = Folder(str(tmp_path_factory.mktemp("disk")))
    order = ArithmeticOrder()
    functions = Functions(find=order.find, locate=order.locate)
    for out in (bucket, disk):
        make_store(out)
        train(out, segment_row(0, 0, 9))
        purge(out, "p1", [2], "f0", "f1")
    assert logical_digest(bucket) == logical_digest(disk)
    for number in range(0, NUM, 7):
        told = [Tracer(out, functions).by_id(doc_id(number)).as_json() for out in (bucket, disk)]
        assert told[0] == told[1]
    for version in (None, 1, 2):
        counts = [
            query(out, "SELECT count(*), count(purged) FROM documents", version=version).rows
            for out in (bucket, disk)
        ]
        assert counts[0] == counts[1]


@pytest.mark.slow
def test_writers_at_once_on_s3_append_each_fact_once(bucket: Folder) -> None:
    make_store(bucket)
    barrier = threading.Barrier(4)

    def write(writer: int) -> None:
        barrier.wait()
        for number in range(5):
            row = {
                "run": "r",
                "host": f"{writer}",
                "folder": "/c",
                "content_fingerprint": "f",
                "at": f"{number}",
            }
            append(bucket, "cache_sweeps", table_of("cache_sweeps", [row]), f"own {writer} {number}")
            append(
                bucket, "cache_sweeps", table_of("cache_sweeps", [row | {"host": "any"}]), f"shared {number}"
            )

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    told = sorted((row["host"], row["at"]) for row in read_table(bucket, "cache_sweeps").to_pylist())
    assert told == sorted((host, str(number)) for host in ("0", "1", "2", "3", "any") for number in range(5))
