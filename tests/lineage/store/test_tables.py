"""Writing and appending: the same rows give the same files, and every commit happens exactly once."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.ids import content_hash, sort_key, sort_keys
from lineage.storage.folder import Folder, StorageError
from lineage.store import delta as store
from lineage.store import write
from lineage.store.checked import GROUP_ROWS
from lineage.store.delta import (
    StoreError,
    append,
    append_run,
    commit_tables,
    corpus_version,
    open_table,
    read_table,
    state,
    table_uri,
)
from lineage.store.shuffle import Shuffle, bucket_of, gather, publish_index
from lineage.store.tables import SCHEMAS, TABLES, WRITTEN_ONCE
from lineage.store.write import (
    add_documents,
    index_rows,
    num_buckets,
    num_ranges,
    placement_buckets,
    publish_rows,
    table_pieces,
    write_bucket,
    write_tables,
)
from tests.support.checkout import ROOT
from tests.support.outputs.logical_digest import logical_digest
from tests.support.outputs.made_store import (
    NUM,
    doc_id,
    documents_table,
    make_store,
    purge_rows,
    run_row,
    table_of,
)

HERE = Path(__file__).parent


def sweep(host: str) -> pa.Table:
    return table_of(
        "cache_sweeps", [{"run": "r", "host": host, "folder": "/c", "content_fingerprint": "f", "at": "t"}]
    )


def data_files(out: Folder) -> dict[str, bytes]:
    return {name: out.read(name) for name in out.names("lineage") if name.endswith(".parquet")}


@settings(max_examples=20, deadline=None)
@given(
    st.randoms(use_true_random=False), st.integers(1, 30), st.integers(1, 100_000), st.sampled_from((0, 5))
)
def test_files_depend_on_the_rows_alone_and_not_on_their_order_batches_or_spilling(
    tmp_path_factory: pytest.TempPathFactory,
    shuffled: random.Random,
    batch: int,
    buffered: int,
    combined: int,
) -> None:
    straight, mixed = (Folder(str(tmp_path_factory.mktemp("out"))) for _ in range(2))
    order = list(range(NUM))
    shuffled.shuffle(order)
    written = []
    for out, numbers, size, buffer_bytes, combined_rows in (
        (straight, list(range(NUM)), NUM, 10**8, NUM),
        (mixed, order, batch, buffered, combined),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(write, "ROWS_PER_BUCKET", 16)
            patch.setattr(write, "_COMBINED_ROWS", combined_rows)
            with Shuffle(table_pieces({"documents": NUM}), buffer_bytes=buffer_bytes) as shuffle:
                for start in range(0, NUM, size):
                    add_documents(shuffle, documents_table(numbers[start : start + size]))
                written.append(write_tables(out, shuffle))
    assert written[0] == written[1]
    assert data_files(straight) == data_files(mixed)


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 30), st.integers(1, 5), st.integers(1, 100_000))
def test_rows_shuffled_by_many_and_gathered_bucket_by_bucket_give_the_files_of_one_process(
    tmp_path_factory: pytest.TempPathFactory,
    shuffled: random.Random,
    batch: int,
    num_shares: int,
    buffered: int,
) -> None:
    one, many, scratch = (Folder(str(tmp_path_factory.mktemp("out"))) for _ in range(3))
    order = list(range(NUM))
    shuffled.shuffle(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "ROWS_PER_BUCKET", 16)
        about = {"documents": NUM, "hash_index": 4 * NUM}
        buckets = {name: num_buckets(about.get(name, 0)) for name in WRITTEN_ONCE}
        with Shuffle(table_pieces(about)) as shuffle:
            add_documents(shuffle, documents_table())
            expected = {name: files for name, files in write_tables(one, shuffle).items() if files}
        shares: dict[str, list[str]] = {}
        for number in range(num_shares):
            share = order[number::num_shares]
            with Shuffle(buckets, buffer_bytes=buffered) as shuffle:
                for start in range(0, len(share), batch):
                    add_documents(shuffle, documents_table(share[start : start + batch]))
                for name in shuffle.publish(scratch, f"{number:05d}"):
                    shares.setdefault(name, []).append(f"{number:05d}")
        for name, keys in shares.items():
            publish_index(scratch, name, keys, buckets[name])
        found = {
            name: [
                file
                for bucket in range(buckets[name])
                for file in write_bucket(
                    many, name, bucket, [gather(scratch, name, keys, bucket, SCHEMAS[name])]
                )
            ]
            for name, keys in shares.items()
        }
    assert found == expected
    assert data_files(many) == data_files(one)


@pytest.mark.parametrize("name", ["documents", "url_index", "hash_index", "edits"])
def test_the_width_of_offsets_in_memory_changes_no_byte(tmp_path: Path, name: str) -> None:
    schema = SCHEMAS[name]
    rows = write.conform(documents_table(), schema)
    kept = pa.table({field.name: column_of(field, rows) for field in schema}, schema=schema)
    (file,) = write_bucket(Folder(str(tmp_path)), name, 0, [kept])
    keys = [
        *TABLES[name].sorted_by,
        *(column for column in schema.names if column not in TABLES[name].sorted_by),
    ]
    narrow = kept.sort_by([(key, "ascending") for key in keys]).combine_chunks()
    assert file == publish_rows(Folder(str(tmp_path)), name, "00000", narrow)


@pytest.mark.parametrize("name", ["purges", "purged", "documents"])
def test_no_rows_are_a_file_of_the_tables_columns(tmp_path: Path, name: str) -> None:
    out = Folder(str(tmp_path))
    file = publish_rows(out, name, "fact", SCHEMAS[name].empty_table())
    assert (file.num_rows, pq.read_table(write.table_folder(out, name).at(file.path)).num_rows) == (0, 0)
    assert write_bucket(out, name, 0, [SCHEMAS[name].empty_table()]) == []


def column_of(field: pa.Field, rows: pa.Table) -> pa.ChunkedArray:
    """The column of made rows, or numbers where they have none: the columns of other tables."""
    made = rows[field.name]
    if made.null_count < len(made):
        return made
    numbers = pa.array(np.arange(len(made)) % 7)
    return (
        numbers.cast(pa.string()).cast(field.type)
        if pa.types.is_binary(field.type)
        else numbers.cast(field.type)
    )


@pytest.mark.slow
def test_a_host_whose_urls_are_more_than_two_gigabytes_is_written(tmp_path: Path) -> None:
    """They are null and have bytes all the same, so that only memory is needed: 2 GiB."""
    num, size = 1024, 1 << 16
    buffers = [pa.py_buffer(bytes(num // 8)), pa.py_buffer(np.arange(num + 1, dtype="<i4") * size)]
    urls = pa.Array.from_buffers(
        pa.string(), num, [*buffers, pa.py_buffer(bytes(num * size))], null_count=num
    )
    columns = {"k": np.zeros(33 * num, np.int64), "url": pa.chunked_array([urls] * 33)}
    files = write_bucket(Folder(str(tmp_path)), "url_index", 0, [pa.table(columns)])
    assert [file.num_rows for file in files] == [33 * num]


def test_each_file_is_sorted_within_its_bucket_and_named_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "ROWS_PER_BUCKET", 8)
    out = Folder(str(tmp_path))
    make_store(out)
    for name in ("documents", "url_index", "hash_index", "warc_index", "cluster_index", "placements"):
        files = state(out, name).files
        for file in files:
            data = write.table_folder(out, name).read(file)
            assert file.removesuffix(".parquet").rpartition("-")[2] == content_hash(data).hex()
            rows = pq.read_table(pa.BufferReader(data)).to_pylist()
            keys = [tuple(row[column] for column in TABLES[name].sorted_by) for row in rows]
            assert keys == sorted(keys)
    keys = [
        set(bucket_of(sort_keys([row["doc_id"] for row in pq.read_table(path).to_pylist()]), 8).tolist())
        for path in sorted(Path(out.at("lineage/documents")).glob("*.parquet"))
    ]
    assert keys == [{bucket} for bucket in range(8)]


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1), st.sampled_from([1, 2, 16, 16384]))
def test_buckets_are_ranges_of_k_in_order(keys: list[int], buckets: int) -> None:
    ordered = np.sort(np.array(keys, np.int64))
    owners = bucket_of(ordered, buckets)
    assert (np.diff(owners) >= 0).all() and owners.min() >= 0 and owners.max() < buckets


@pytest.mark.parametrize(("rows", "buckets"), [
    (0, 1), (1, 1), (1 << 20, 1), ((1 << 20) + 1, 2), (10_000_000, 16), (10_000_000_000, 16384),
])  # fmt: skip
def test_the_number_of_buckets_grows_with_the_rows(rows: int, buckets: int) -> None:
    assert num_buckets(rows) == buckets


def test_a_key_that_overfills_its_bucket_gets_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "ROWS_PER_BUCKET", 5)
    out = Folder(str(tmp_path))
    rows = table_of("hash_index", [{"k": 7, "doc_k": number} for number in range(23)])
    files = write_bucket(out, "hash_index", 0, [rows])
    assert [file.num_rows for file in files] == [10, 10, 3]


@pytest.mark.parametrize("combined", [0, 1 << 20])
@pytest.mark.parametrize("ends", [(1, 2), (16_384, 20_000), (5, 16_383, 16_385, 49_000)])
def test_the_pieces_that_a_bucket_comes_in_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[int, ...], combined: int
) -> None:
    """Row groups begin and end inside of pieces, and where one ends; a large piece is not copied as a whole."""
    whole, pieced = (Folder(str(tmp_path / name)) for name in ("whole", "pieced"))
    num = 3 * GROUP_ROWS + 7
    rows = [{"k": number // 3, "host": f"h{number % 11}", "url": f"u{number}"} for number in range(num)]
    table = table_of("url_index", rows)
    borders = [0, *(end // 3 * 3 for end in ends), num]
    pieces = [table.slice(begin, end - begin) for begin, end in itertools.pairwise(borders)]
    expected = write_bucket(whole, "url_index", 0, [table])
    backwards = [piece.take(np.arange(len(piece))[::-1]) for piece in pieces]
    in_batches = [
        pa.Table.from_batches(piece.to_batches(max_chunksize=999), piece.schema) for piece in backwards
    ]
    monkeypatch.setattr(write, "_COMBINED_ROWS", combined)
    assert write_bucket(pieced, "url_index", 0, in_batches) == expected
    assert data_files(pieced) == data_files(whole)


def test_one_process_sorts_a_full_bucket_in_pieces_and_a_small_one_whole() -> None:
    pieces = table_pieces(
        {"documents": 1 << 20, "hash_index": 1 << 22, "edits": 1 << 16, "findings": 100_000}
    )
    assert [pieces[name] for name in ("documents", "hash_index", "edits", "findings", "steps")] == [
        64,
        256,
        4,
        8,
        1,
    ]


@pytest.mark.parametrize(
    ("rows", "ranges"), [(0, 1), (1 << 14, 1), (100_000, 8), (1 << 20, 64), (1 << 26, 1024), (1 << 31, 2048)]
)
def test_one_process_looks_at_rows_in_ranges_of_bounded_number(rows: int, ranges: int) -> None:
    assert num_ranges(rows) == ranges


def test_a_bucket_of_placements_holds_whole_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "ROWS_PER_BUCKET", 10)
    shards = [("a", 0, 4), ("a", 1, 6), ("a", 2, 1), ("b", 0, 50), ("b", 1, 1)]
    assert list(placement_buckets(shards)) == [[("a", 0), ("a", 1)], [("a", 2)], [("b", 0)], [("b", 1)]]


def test_the_empty_text_is_not_indexed_and_equal_hashes_of_a_document_once() -> None:
    from lineage.ids import text_hash

    row = {
        "k": 5,
        "doc_id": doc_id(0),
        "text_hash": text_hash(""),
        "raw_hash": doc_id(1),
        "clean_hash": doc_id(1),
    }
    derived = index_rows(table_of("documents", [row]))
    assert derived["hash_index"].to_pylist() == [{"k": sort_key(doc_id(1)), "doc_k": 5}]
    assert [derived[name].num_rows for name in ("url_index", "warc_index", "cluster_index")] == [0, 0, 0]


def test_all_tables_exist_from_the_first_commit_and_committing_again_changes_nothing(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    make_store(out)
    for name in TABLES:
        assert state(out, name).version == 0
        assert read_table(out, name).schema.equals(SCHEMAS[name])
    assert state(out, "documents").num_rows == NUM and corpus_version(out) == 1


def test_facts_are_appended_to_a_table_whose_columns_stand_in_another_order(tmp_path: Path) -> None:
    """Delta keeps columns by name."""
    out = Folder(str(tmp_path))
    columns = list(SCHEMAS["purged"])
    earlier = pa.schema([columns[1], columns[0], *columns[2:]])
    Path(table_uri(out, "purged")).mkdir(parents=True)
    DeltaTable.create(table_uri(out, "purged"), earlier)
    make_store(out)
    purged, _ = purge_rows("one", [3], "a", "b")
    assert append(out, "purged", purged, "one")
    assert read_table(out, "purged").to_pylist() == purged.select(SCHEMAS["purged"].names).to_pylist()


def test_each_table_has_its_columns_once_and_is_sorted_by_its_own() -> None:
    for name, table in TABLES.items():
        columns = SCHEMAS[name].names
        assert len(set(columns)) == len(columns)
        assert {*table.sorted_by, *table.pruned_by, *table.hidden, *table.newest_of, *table.places} <= set(
            columns
        )
        assert bool(table.sorted_by) == (name in WRITTEN_ONCE)


def test_another_runs_tables_are_not_taken_for_ours(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    with pytest.raises(StoreError, match="written by another run"):
        make_store(out, documents_table(range(NUM - 1)))


def test_a_commit_that_was_killed_between_tables_is_finished_by_the_next(tmp_path: Path) -> None:
    """The state after a kill: some tables committed, others not, files of all lying there."""
    out, whole = Folder(str(tmp_path / "out")), Folder(str(tmp_path / "whole"))
    make_store(whole)
    with Shuffle() as shuffle:
        add_documents(shuffle, documents_table())
        commit_tables(out, {"documents": write_tables(out, shuffle)["documents"]} | {name: [] for name in ()})
    for name in TABLES:
        if name != "documents":
            Folder(table_uri(out, name)).remove_tree("")
    make_store(out)
    assert logical_digest(out) == logical_digest(whole)


def test_the_logical_digest_sees_rows_and_not_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [Folder(str(tmp_path / name)) for name in "abc"]
    make_store(folders[0])
    changed = documents_table().to_pylist()
    changed[5]["num_chars"] = 301
    make_store(folders[2], table_of("documents", changed))
    monkeypatch.setattr(write, "ROWS_PER_BUCKET", 8)
    make_store(folders[1])
    first, bucketed, other = map(logical_digest, folders)
    assert first == bucketed and set(first) == set(WRITTEN_ONCE)
    assert {name for name in first if first[name] != other[name]} == {"documents"}


def test_scores_are_a_column_of_each_classifier_and_part_of_the_logical_digest(tmp_path: Path) -> None:
    folders = [Folder(str(tmp_path / name)) for name in "abc"]
    plain = documents_table()
    scores = [None if number % 3 else number / NUM for number in range(NUM)]
    changed = [*scores[:-1], 0.5]
    tables = [
        plain,
        *(plain.append_column("score_edu", pa.array(column, pa.float64())) for column in (scores, changed)),
    ]
    for out, documents in zip(folders, tables, strict=True):
        make_store(out, documents)
    assert "score_edu" not in store.arrow_dataset(folders[0], "documents").schema.names
    assert scores_of(store.arrow_dataset(folders[1], "documents").to_table()) == scores_of(tables[1])
    digests = [logical_digest(out) for out in folders]
    assert len({digest["documents"] for digest in digests}) == 3
    assert len({digest["url_index"] for digest in digests}) == 1


def scores_of(documents: pa.Table) -> list[float | None]:
    """The column of scores in order of doc_id."""
    found: list[float | None] = documents.sort_by("doc_id")["score_edu"].to_pylist()
    return found


def test_a_fact_is_appended_once_however_often_it_is_told(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    assert append(out, "cache_sweeps", sweep("a"), "one") is True
    assert append(out, "cache_sweeps", sweep("a"), "one") is False
    assert append(out, "cache_sweeps", sweep("other"), "one") is False
    assert append(out, "cache_sweeps", sweep("a"), "two") is True
    assert read_table(out, "cache_sweeps")["host"].to_pylist() == ["a", "a"]
    assert len(Folder(out.at("lineage/cache_sweeps")).names()) == 3 + 2


def test_what_failed_tries_left_of_a_fact_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, table = Folder(str(tmp_path)), tmp_path / "lineage" / "cache_sweeps"
    make_store(out)

    def fail(*_: object) -> None:
        raise StorageError(5, "Input/output error")

    monkeypatch.setattr(store, "commit_file", fail)
    for host in ("first", "second"):
        with pytest.raises(StorageError):
            append(out, "cache_sweeps", sweep(host), "one")
    with pytest.raises(StorageError):
        append(out, "cache_sweeps", sweep("first"), "two")
    monkeypatch.undo()
    prefix = next(path.name for path in table.glob("fact-*")).rpartition("-")[0]
    (table / f".tmp-{prefix}-0.parquet").mkdir()
    (table / f".tmp-{prefix}-0.parquet" / "dead").touch()
    assert len(list(table.glob("fact-*"))) == 3
    for transaction in ("one", "two"):
        assert append(out, "cache_sweeps", sweep("third"), transaction)
    assert {file.name for file in table.glob("*.parquet")} == set(state(out, "cache_sweeps").files)
    assert not list(table.glob(".tmp-*"))


def test_what_a_dead_writer_left_of_a_fact_that_nobody_tells_again_goes_with_the_next(tmp_path: Path) -> None:
    out, table = Folder(str(tmp_path)), tmp_path / "lineage" / "cache_sweeps"
    make_store(out)
    (table / ".tmp-fact-0123456789abcdef-0.parquet").mkdir()
    assert append(out, "cache_sweeps", sweep("a"), "one")
    assert not list(table.glob(".tmp-*"))


def test_a_stale_handle_cannot_repeat_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers opened the table before either committed: the second must look again, and leave no file
    behind."""
    out = Folder(str(tmp_path))
    make_store(out)
    stale = open_table(out, "cache_sweeps")
    append(out, "cache_sweeps", sweep("first"), "same")
    handed_out = iter([stale, stale])
    real = store.open_table
    monkeypatch.setattr(
        store, "open_table", lambda *asked, **more: next(handed_out, None) or real(*asked, **more)
    )
    assert append(out, "cache_sweeps", sweep("second"), "same") is False
    monkeypatch.undo()
    assert read_table(out, "cache_sweeps")["host"].to_pylist() == ["first"]
    assert len([f for f in Folder(out.at("lineage/cache_sweeps")).names() if f.endswith(".parquet")]) == 1


def test_many_small_files_of_facts_become_one_without_losing_a_row_or_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FILES_WORTH_GATHERING", 5)
    out = Folder(str(tmp_path))
    make_store(out)
    for number in range(23):
        append(out, "cache_sweeps", sweep(str(number)), str(number))
        assert len(state(out, "cache_sweeps").files) < 5 or number == 3
    assert sorted(map(int, read_table(out, "cache_sweeps")["host"].to_pylist())) == list(range(23))
    assert not any(append(out, "cache_sweeps", sweep(str(number)), str(number)) for number in range(23))
    assert len(read_table(out, "cache_sweeps", 3)) == 3


def test_of_two_rewriters_at_once_one_wins_and_no_row_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    for number in range(6):
        append(out, "cache_sweeps", sweep(str(number)), str(number))
    monkeypatch.setattr(store, "FILES_WORTH_GATHERING", 5)
    stale = open_table(out, "cache_sweeps")
    store._gather(out, "cache_sweeps")
    real = store.open_table
    handed_out = iter([stale])
    monkeypatch.setattr(
        store, "open_table", lambda *asked, **more: next(handed_out, None) or real(*asked, **more)
    )
    store._gather(out, "cache_sweeps")
    assert sorted(read_table(out, "cache_sweeps")["host"].to_pylist()) == sorted(map(str, range(6)))
    assert len([f for f in Folder(out.at("lineage/cache_sweeps")).names() if f.endswith(".parquet")]) == 7


def test_a_run_name_belongs_to_one_output(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    assert append_run(out, run_row()) is True
    assert append_run(out, run_row()) is False
    assert append_run(out, run_row(plan="plan-b")) is True
    with pytest.raises(StoreError, match=r"another run\.name"):
        append_run(out, run_row(output="/elsewhere"))
    assert sorted(read_table(out, "training_runs")["fact"].to_pylist()) == [0, 1]


def test_of_a_plan_that_was_edited_back_the_newest_row_counts(tmp_path: Path) -> None:
    from tests.support.outputs.lineage_query import query

    out = Folder(str(tmp_path))
    make_store(out)
    assert [append_run(out, run_row(plan=plan)) for plan in ("a", "b", "a", "a")] == [True, True, True, False]
    assert query(out, "SELECT plan_fingerprint FROM training_runs").rows == [("a",)]


def _append_many(url: str, writer: int, together: Barrier) -> None:
    out = Folder(url)
    store.FILES_WORTH_GATHERING = 4  # so that rewriters race too
    together.wait()
    for number in random.Random(writer).sample(range(20), 20):
        append(out, "cache_sweeps", sweep(f"shared {number}"), f"shared {number}")
        append(out, "training_segments", _segment(writer, number), f"{writer}:{number}")
        if number % 5 == 0:
            purged, purges = purge_rows(f"p{writer}-{number}", [number], "f0", "f1")
            append(out, "purged", purged, f"p{writer}-{number}")
            append(out, "purges", purges, f"p{writer}-{number}")


def _segment(writer: int, number: int) -> pa.Table:
    return table_of(
        "training_segments", [{"run": f"run {writer}", "attempt": 0, "first_step": number, "fact": 0}]
    )


@pytest.mark.slow
def test_four_writers_at_once_lose_nothing_and_double_nothing_while_readers_read(tmp_path: Path) -> None:
    from tests.support.outputs.lineage_query import query

    out = Folder(str(tmp_path))
    make_store(out)
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(4)
    writers = [context.Process(target=_append_many, args=(out.url, writer, together)) for writer in range(4)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        count = query(out, "SELECT count(*) FROM training_segments").rows[0][0]
        assert isinstance(count, int) and count >= seen
        seen = count
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert sorted(read_table(out, "cache_sweeps")["host"].to_pylist()) == sorted(
        f"shared {n}" for n in range(20)
    )
    told = [(row["run"], row["first_step"]) for row in read_table(out, "training_segments").to_pylist()]
    assert sorted(told) == [(f"run {writer}", number) for writer in range(4) for number in range(20)]
    assert query(out, "SELECT count(*), count(DISTINCT purge_id) FROM purged").rows == [(16, 16)]
    assert corpus_version(out) == 17


@pytest.mark.slow
def test_two_outputs_that_claim_one_run_name_at_once_cannot_both_have_it(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(4)
    claims = [context.Process(target=_claim, args=(out.url, n, together)) for n in range(4)]
    for claim in claims:
        claim.start()
    for claim in claims:
        claim.join()
    assert sorted(claim.exitcode for claim in claims if claim.exitcode is not None) == [0, 7, 7, 7]
    assert len(read_table(out, "training_runs")) == 1


def _claim(url: str, number: int, together: Barrier) -> None:
    together.wait()
    try:
        append_run(Folder(url), run_row(output=f"/runs/{number}"))
    except StoreError:
        sys.exit(7)


_KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from test_tables import sweep
from lineage.storage.folder import Folder, StorageError
from lineage.store.delta import append
out = Folder(sys.argv[1])
print("ready", flush=True)
for number in range(12):
    append(out, "cache_sweeps", sweep(str(number)), f"fact {number}")
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_and_started_again_appends_each_fact_once(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    moments = random.Random(1)
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", _KILLED, out.url, str(HERE)], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(moments.uniform(0, 0.15))
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    subprocess.run([sys.executable, "-c", _KILLED, out.url, str(HERE)], check=True, cwd=ROOT, timeout=120)
    assert sorted(map(int, read_table(out, "cache_sweeps")["host"].to_pylist())) == list(range(12))


def test_the_log_keeps_every_version_readable(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    for number in range(23):
        append(out, "cache_sweeps", sweep(str(number)), str(number))
    for version in (0, 1, 9, 10, 11, 23):
        assert len(read_table(out, "cache_sweeps", version)) == version
    assert DeltaTable(table_uri(out, "cache_sweeps")).transaction_version("0") == 1


def test_a_table_that_cannot_be_written_is_named_in_one_line_without_colours(tmp_path: Path) -> None:
    log = tmp_path / "lineage" / "inputs" / "_delta_log"
    log.parent.mkdir(parents=True)
    log.write_text("a file where the log's folder belongs")
    with pytest.raises(StorageError, match=r"lineage/inputs cannot be written: \w") as raised:
        commit_tables(Folder(str(tmp_path)), {})
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)
