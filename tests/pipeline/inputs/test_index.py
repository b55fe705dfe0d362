"""A columnar index as an input: what is selected, what is fetched, and that it is what a whole read gives."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from pipeline import process
from pipeline.export.process import corpus_export, export, in_process
from pipeline.inputs.files import Input
from pipeline.inputs.index import check_root, select_inputs
from pipeline.inputs.index_table import _SharedFile
from pipeline.inputs.ranges import CONNECTIONS, FileRanges, fetched
from pipeline.inputs.retries import Retries
from pipeline.inputs.selected import MOST_GAP, MOST_JOINED, SelectedRecord, joined
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import load, trial_of
from pipeline.recipe.tables import SourceTable
from tests.support.inputs.cc_index import CRAWL, SEGMENT, TABLE, SmallCrawl, make_crawl, write_index
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run, s3_server, write_recipe
from tests.support.stores.range_server import Ranges, range_server

FAST = Retries(attempts=6, backoff_seconds=0.01)
ENGLISH = "content_languages = 'eng' AND fetch_status = 200"
FACTS = (
    "doc_id", "url", "warc_file", "warc_offset", "warc_length", "raw_hash", "text_hash", "clean_hash", "num_chars",
    "captured_at", "charset", "record_id", "status", "stage", "rule", "language",
)  # fmt: skip
"""Columns of `documents` that are the same however a record was read."""


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> SmallCrawl:
    return make_crawl(tmp_path_factory.mktemp("common-crawl"))


def source(crawl: SmallCrawl, where: str | None = ENGLISH, **more: Any) -> SourceTable:
    return replace(SourceTable(name="web", index=crawl.index, where=where), **more)


def places(inputs: list[Input]) -> list[tuple[str, int, int, str | None]]:
    return [(found.name, *record) for found in inputs for record in found.records or ()]


def rows_of(crawl: SmallCrawl, takes: Callable[[dict[str, Any]], bool]) -> list[tuple[str, int, int, str]]:
    columns = ("warc_filename", "warc_record_offset", "warc_record_length", "content_digest")
    return sorted(tuple(row[name] for name in columns) for row in crawl.rows if takes(row))


def is_english(row: dict[str, Any]) -> bool:
    return bool(row["content_languages"] == "eng" and row["fetch_status"] == 200)


def data_recipe(out: Path, **table: Any) -> dict[str, Any]:
    made = recipe(str(out), {"web": ()}, dedup={"near": False})
    del made["source"][0]["inputs"]
    made["source"][0] |= table
    return made


def documents(out: Path) -> dict[str, dict[str, Any]]:
    found = query(Folder(str(out)), "SELECT * FROM documents")
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    return {row["doc_id"]: row for row in rows}


def test_the_rows_that_the_condition_holds_for_are_selected_by_file_and_offset(crawl: SmallCrawl) -> None:
    found = select_inputs(source(crawl), 0)
    assert places(found) == rows_of(crawl, is_english) != []
    assert [each.size for each in found] == [sum(r.length for r in each.records or ()) for each in found]
    first = found[0]
    assert first.records is not None
    assert (first.records.crawl, first.records.segment) == (CRAWL, SEGMENT)
    assert first.url == str(crawl.folder / first.name)


@pytest.mark.parametrize(
    "index",
    [TABLE, f"{TABLE}/subset=warc/*.parquet", "cc-index/table/cc-main/warc/**/*.parquet"],
)
def test_an_index_is_a_folder_or_a_pattern_and_its_folders_are_columns(crawl: SmallCrawl, index: str) -> None:
    asked = source(
        crawl, f"crawl = '{CRAWL}' AND subset = 'crawldiagnostics'", index=str(crawl.folder / index)
    )
    if "subset=warc" in index:
        with pytest.raises(RecipeError, match="selects none of its rows"):
            select_inputs(asked, 0)
    else:
        assert places(select_inputs(asked, 0)) == rows_of(crawl, lambda row: row["fetch_status"] == 404)


def test_a_file_whose_name_holds_a_wildcard_is_that_file(crawl: SmallCrawl, tmp_path: Path) -> None:
    write_index(tmp_path / "odd[ab]", crawl.rows[:5], num_files=1)
    write_index(tmp_path / "odda", crawl.rows, num_files=1)  # which that name matches as a pattern
    (path,) = (tmp_path / "odd[ab]").iterdir()
    found = select_inputs(source(crawl, None, index=str(path)), 0)
    assert len(places(found)) == 5


def test_a_sample_is_taken_by_a_hash_of_the_seed_and_the_place(crawl: SmallCrawl) -> None:
    def number(row: dict[str, Any], seed: int) -> int:
        told = f"{seed} {row['warc_filename']} {row['warc_record_offset']}"
        return int.from_bytes(hashlib.md5(told.encode()).digest()[8:], "little")

    ok = [row for row in crawl.rows if row["fetch_status"] == 200]
    for seed in (0, 7):
        numbers = {(row["warc_filename"], row["warc_record_offset"]): number(row, seed) for row in ok}
        sampled = places(select_inputs(source(crawl, None, sample=0.3), seed))
        assert {place[:2] for place in sampled} == {place for place, n in numbers.items() if n < 0.3 * 2**64}
        limited = places(select_inputs(source(crawl, None, limit=5), seed))
        assert {place[:2] for place in limited} == set(sorted(numbers, key=numbers.__getitem__)[:5])
        assert 0 < len(sampled) < len(ok)


@pytest.mark.parametrize(
    ("where", "told"),
    [(None, "source.sample = 1e-12"), (ENGLISH, f"source.where = {ENGLISH!r} with source.sample = 1e-12")],
)
def test_a_share_so_small_that_no_record_is_in_it_is_named(
    crawl: SmallCrawl, where: str | None, told: str
) -> None:
    with pytest.raises(RecipeError, match=re.escape(f": {told} selects none of its rows")):
        select_inputs(source(crawl, where, sample=1e-12), 0)


WRONG_CONDITIONS = [
    ("language = 'eng'", "the index has no column 'language'; it has content_digest, content_languages"),
    ("content_languages = 'eng", "expected an SQL expression"),
    ("url LIKE '%a%'; DROP TABLE t", "expected an SQL expression"),
    ("true) UNION SELECT * FROM t WHERE (true", "expected one condition"),
    ("true) ORDER BY (url", "expected one condition"),
    ("true) LIMIT (3", "expected one condition"),
    ("url IN (SELECT content FROM read_text('/etc/passwd'))", "it holds a SELECT of its own"),
    ("EXISTS (FROM read_csv('/etc/passwd'))", "it holds a SELECT of its own"),
    ("random() < 0.5", "'random' may give another value on another day"),
    ("now() > fetch_status", "'now' may give another value"),
    ("getvariable('a') = url", "'getvariable' may give another value"),
    ("lookup(url)", "'lookup' is none that a condition may call"),
    ("sum(fetch_status) > 3", "'sum' may give another value"),
    ("true) OR (true", "expected one condition"),
    ("len($files) > 1", "it holds a parameter"),
    ("age(TIMESTAMP '2026-01-01') > INTERVAL 1 DAY", "'age' may give another value on another day"),
    ("fetch_status + url", "."),
    ("url = ?", "."),
]


@pytest.mark.parametrize(("where", "said"), WRONG_CONDITIONS)
def test_a_condition_that_is_none_or_reads_more_is_refused(crawl: SmallCrawl, where: str, said: str) -> None:
    with pytest.raises(RecipeError) as raised:
        select_inputs(source(crawl, where), 0)
    message = str(raised.value)
    assert message.startswith(f"source.where of 'web' = {where!r}: ") and said in message
    assert "\n" not in message.replace(repr(where), "")


@pytest.mark.parametrize(
    "where",
    [
        "content_languages LIKE '%en%' AND url_host_tld = 'edu'",
        "regexp_matches(url, 'site-[0-3]') OR lower(url_host_name) IN ('site-4.com')",
        "fetch_status BETWEEN 200 AND 299 -- a comment",
        "CASE WHEN fetch_status = 200 THEN true ELSE false END",
        "CAST(fetch_status AS VARCHAR) = '200' AND content_digest IS NOT NULL",
    ],
)
def test_conditions_of_every_day_are_taken(crawl: SmallCrawl, where: str) -> None:
    assert select_inputs(source(crawl, where), 0)


def test_a_time_in_a_condition_is_of_utc_wherever_the_machine_is(crawl: SmallCrawl, tmp_path: Path) -> None:
    times = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(24)]
    columns = {
        "fetch_time": pa.array(times, pa.timestamp("us", tz="UTC")),
        "warc_filename": [crawl.paths[0]] * 24,
        "warc_record_offset": range(24),
        "warc_record_length": [1] * 24,
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    code = f"""
from pipeline.inputs.index import select_inputs
from pipeline.recipe.tables import SourceTable
asked = SourceTable(name="web", index="{tmp_path}/t.parquet", where="fetch_time >= '2026-01-01 12:00:00'")
print(len(select_inputs(asked, 0)[0].records))
"""
    for zone in ("UTC", "Asia/Tokyo"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout == "12\n"


def test_a_table_that_is_none_of_records_is_refused(crawl: SmallCrawl, tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": ["a"], "warc_filename": ["b"]}), tmp_path / "t.parquet")
    with pytest.raises(RecipeError, match="no column warc_record_offset and warc_record_length"):
        select_inputs(source(crawl, None, index=str(tmp_path / "t.parquet")), 0)
    (tmp_path / "no.parquet").write_bytes(b"no table")
    with pytest.raises(RecipeError, match=r"source.index of 'web': .*no\.parquet") as raised:
        select_inputs(source(crawl, None, index=str(tmp_path / "no.parquet")), 0)
    assert "\n" not in str(raised.value)
    with pytest.raises(RecipeError, match=r"source.index of 'web': there is no file"):
        select_inputs(source(crawl, None, index=str(tmp_path / "absent.parquet")), 0)
    with pytest.raises(RecipeError, match="a web server lists no folder"):
        select_inputs(source(crawl, None, index="https://data.commoncrawl.org/cc-index/table/"), 0)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("warc_filename", "../../etc/passwd", "expected a path below source.root"),
        ("warc_filename", "/etc/passwd", "expected a path below source.root"),
        ("warc_filename", "https://elsewhere.example/a.warc.gz", "expected a path below source.root"),
        ("warc_filename", None, "expected a path below source.root"),
        ("warc_record_offset", -1, "warc_record_offset -1: expected a number of bytes"),
        ("warc_record_length", 0, "warc_record_length 0: expected a number of bytes, at least 1"),
        ("warc_record_length", None, "warc_record_length None"),
    ],
)
def test_a_row_that_names_no_place_below_the_root_is_refused(
    crawl: SmallCrawl, tmp_path: Path, column: str, value: Any, said: str
) -> None:
    write_index(tmp_path, [*crawl.rows[:3], {**crawl.rows[3], column: value}])
    with pytest.raises(RecipeError) as raised:
        select_inputs(source(crawl, None, index=str(tmp_path / "*.parquet")), 0)
    assert said in str(raised.value)


def test_a_row_that_stands_twice_counts_once(crawl: SmallCrawl, tmp_path: Path) -> None:
    write_index(tmp_path, [*crawl.rows, *crawl.rows])
    found = select_inputs(source(crawl, None, index=str(tmp_path / "*.parquet")), 0)
    assert places(found) == rows_of(crawl, lambda row: True)


def test_of_two_lengths_of_one_place_the_longer_counts(crawl: SmallCrawl, tmp_path: Path) -> None:
    short = [{**row, "warc_record_length": 5} for row in crawl.rows[::2]]
    write_index(tmp_path, [*short, *crawl.rows])
    found = select_inputs(source(crawl, None, index=str(tmp_path / "*.parquet")), 0)
    assert places(found) == rows_of(crawl, lambda row: True)


def test_a_root_that_is_none_is_named(crawl: SmallCrawl, tmp_path: Path) -> None:
    asked = source(crawl, root=str(tmp_path))
    with pytest.raises(RecipeError, match=r"source.root of 'web': .* cannot be fetched: .* is relative"):
        check_root(asked, select_inputs(asked, 0))


RECORDS = st.lists(
    st.tuples(st.integers(0, 40 << 20), st.integers(1, 9 << 20)),
    min_size=1,
    max_size=30,
    unique_by=lambda r: r[0],
)


@given(RECORDS)
def test_requests_cover_each_record_once_and_join_only_neighbours(told: list[tuple[int, int]]) -> None:
    records = [SelectedRecord(offset, length, None) for offset, length in sorted(told)]
    groups = list(joined(records))
    assert [record for group in groups for record in group] == records
    for group in groups:
        begin, end = group[0].offset, max(r.offset + r.length for r in group)
        assert len(group) == 1 or end - begin <= MOST_JOINED
        reached = begin
        for record in group:
            assert record.offset - reached <= MOST_GAP
            reached = max(reached, record.offset + record.length)
    for one, other in itertools.pairwise(groups):
        end = max(r.offset + r.length for r in one)
        is_far = other[0].offset - end > MOST_GAP
        assert is_far or max(end, other[0].offset + other[0].length) - one[0].offset > MOST_JOINED


def test_records_are_those_that_the_files_hold(crawl: SmallCrawl) -> None:
    inputs = select_inputs(source(crawl), 0)
    expected = []
    for name, offset, length, _ in places(inputs):
        data = (crawl.folder / name).read_bytes()
        expected.append(data[offset : offset + length])
    assert [each.stream.read() for each in fetched(inputs)] == expected
    with range_server(crawl.folder, Ranges()) as url:
        there = select_inputs(source(crawl, root=url), 0)
        assert [each.stream.read() for each in fetched(there)] == expected


def test_a_long_record_is_fetched_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.inputs.ranges.MOST_JOINED", 1000)
    monkeypatch.setattr("pipeline.inputs.selected.MOST_JOINED", 1000)
    crawl = make_crawl(tmp_path, num_files=1)
    ranges = Ranges(fault=lambda number, name: "cut" if number % 3 == 0 else None)
    with range_server(tmp_path, ranges) as url:
        inputs = select_inputs(source(crawl, None, root=url), 0)
        found = [each.stream.read() for each in fetched(inputs, FAST)]
    data = (tmp_path / inputs[0].name).read_bytes()
    assert found == [data[offset : offset + length] for _, offset, length, _ in places(inputs)]
    assert max(asked.end - asked.begin for asked in ranges.asked) <= 1000


@pytest.mark.parametrize("fault", ["whole", "moved"])
def test_a_server_may_answer_a_range_with_the_whole_file_or_lead_elsewhere(
    crawl: SmallCrawl, fault: Any
) -> None:
    near = [each.stream.read() for each in fetched(select_inputs(source(crawl), 0))]
    with range_server(
        crawl.folder, Ranges(fault=lambda number, name: fault if number % 2 == 0 else None)
    ) as url:
        found = select_inputs(source(crawl, root=url), 0)
        assert [each.stream.read() for each in fetched(found, FAST)] == near


@pytest.mark.parametrize("fault", ["other range", "parts"])
def test_an_answer_with_another_range_than_was_asked_for_is_refused(crawl: SmallCrawl, fault: Any) -> None:
    with range_server(crawl.folder, Ranges(fault=lambda number, name: fault)) as url:
        found = select_inputs(source(crawl, root=url), 0)
        with pytest.raises(
            OSError, match=r"the server answers the bytes from .*: expected the range that was asked for"
        ):
            list(fetched(found, FAST))


def test_threads_that_read_one_index_file_have_places_of_their_own(crawl: SmallCrawl) -> None:
    path = next((crawl.folder / TABLE / "subset=warc").glob("*.parquet"))
    data = path.read_bytes()
    shared = _SharedFile(FileRanges(str(path), "shown"), len(data), threading.BoundedSemaphore(2))
    shared.seek(10)
    with ThreadPoolExecutor(1) as other:
        other.submit(shared.seek, 500).result()
        assert shared.read(20) == data[10:30]
        assert other.submit(shared.read, 20).result() == data[500:520]


@pytest.fixture(scope="module")
def whole(crawl: SmallCrawl, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The documents of a run that read the whole WARC files of the crawl's list."""
    folder = tmp_path_factory.mktemp("whole")
    made = recipe(str(folder / "out"), {"web": (crawl.paths_list,)}, dedup={"near": False})
    run(folder, made)
    return documents(folder / "out")


def test_documents_are_those_of_a_whole_read_over_a_server_that_is_busy_and_breaks_off(
    crawl: SmallCrawl, whole: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.inputs.ranges.READING", FAST)

    def fault(number: int, name: str) -> Any:
        return {0: "busy", 1: "cut"}.get(number % 4) if name.endswith(".warc.gz") else None

    ranges = Ranges(fault=fault)
    with range_server(crawl.folder, ranges) as url:
        files = sorted((crawl.folder / TABLE / "subset=warc").glob("*.parquet"))
        index = [f"{url}/{file.relative_to(crawl.folder)}" for file in files]
        summary = run(tmp_path, data_recipe(tmp_path / "out", index=index, where=ENGLISH, root=url))
    found = documents(tmp_path / "out")
    english = {row["url"]: row for row in crawl.rows if is_english(row)}
    assert {row["url"] for row in found.values()} == set(english)
    for doc_id, row in found.items():
        assert {name: row[name] for name in FACTS} == {name: whole[doc_id][name] for name in FACTS}
        told = english[row["url"]]
        assert (row["crawl"], row["warc_segment"]) == (CRAWL, SEGMENT)
        assert row["content_digest"] == told["content_digest"]
    inputs = read_table(Folder(str(tmp_path / "out")), "inputs").to_pylist()
    assert {row["file"] for row in inputs} == {f"{url}/{name}" for name in crawl.paths}
    assert sum(row["num_records"] for row in inputs) == len(english) == summary["num_documents"]
    # The records of a file lie near each other: beside the first look at the root a request a file, and again after
    # each fault.
    of_warcs = [asked for asked in ranges.asked if asked.name.endswith(".warc.gz")]
    num_faults = sum(1 for number, asked in enumerate(ranges.asked) if fault(number, asked.name))
    assert len(of_warcs) == len(crawl.paths) + 1 + num_faults
    assert ranges.most_at_once <= CONNECTIONS


def test_a_run_that_a_server_ended_goes_on_with_the_files_that_are_left(
    crawl: SmallCrawl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.inputs.bundles._MOST_FILES", 1)  # so that there are several units
    monkeypatch.setattr("pipeline.inputs.ranges.READING", replace(FAST, attempts=2))
    first: list[str] = []

    def only_first(number: int, name: str) -> Any:
        if number > 0 and not first:  # behind the look at the root
            first.append(name)
        return None if number == 0 or name in first else "busy"

    ranges = Ranges(fault=only_first)
    with range_server(crawl.folder, ranges) as url:
        made = data_recipe(tmp_path / "out", index=crawl.index, where=ENGLISH, root=url)
        with pytest.raises(OSError, match="the server answers"):
            run(tmp_path / "1", made)
        ranges.asked.clear()
        ranges.fault = lambda number, name: None
        run(tmp_path / "2", made)
        _, *asked = (asked.name for asked in ranges.asked)
        assert sorted(asked) == sorted({*crawl.paths} - {*first})
        near = data_recipe(tmp_path / "near", index=crawl.index, where=ENGLISH)
        run(tmp_path / "3", near)
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(tmp_path / "near"))


def test_the_bytes_do_not_depend_on_where_index_and_files_lie(crawl: SmallCrawl, tmp_path: Path) -> None:
    with range_server(crawl.folder, Ranges()) as url:
        near = data_recipe(tmp_path / "near", index=crawl.index, where=ENGLISH)
        far = data_recipe(tmp_path / "far", index=crawl.index, where=ENGLISH, root=url)
        run(tmp_path / "1", near)
        run(tmp_path / "2", far)
    assert fingerprint(str(tmp_path / "near")) == fingerprint(str(tmp_path / "far"))


def test_the_bytes_do_not_depend_on_the_number_of_workers(
    small_ray: None, crawl: SmallCrawl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.inputs.bundles._MOST_FILES", 1)  # so that there are several units
    made = data_recipe(tmp_path / "here", index=crawl.index, where=ENGLISH)
    run(tmp_path / "1", made)
    run(tmp_path / "2", {**made, "run": {**made["run"], "output": str(tmp_path / "ray")}, "ray": ON_RAY})
    assert fingerprint(str(tmp_path / "here")) == fingerprint(str(tmp_path / "ray"))


def test_index_and_files_may_lie_in_a_bucket(crawl: SmallCrawl, tmp_path: Path) -> None:
    with s3_server("commoncrawl"):
        there = Folder("s3://commoncrawl")
        for path in crawl.folder.rglob("*"):
            if path.is_file():
                there.publish(str(path.relative_to(crawl.folder)), path.read_bytes())
        asked = source(crawl, index=f"s3://commoncrawl/{TABLE}")
        found = select_inputs(asked, 0)
        assert found[0].url == f"s3://commoncrawl/{found[0].name}"
        assert places(found) == rows_of(crawl, is_english)
        data = {name: (crawl.folder / name).read_bytes() for name in crawl.paths}
        assert [each.stream.read() for each in fetched(found)] == [
            data[name][offset : offset + length] for name, offset, length, _ in places(found)
        ]


def test_a_record_that_is_damaged_is_lost_alone_and_named(tmp_path: Path) -> None:
    crawl = make_crawl(tmp_path / "crawl", num_files=2)
    ok = [row for row in crawl.rows if row["fetch_status"] == 200]
    spoilt, beyond = ok[0], ok[-1]
    path = crawl.folder / spoilt["warc_filename"]
    data = bytearray(path.read_bytes())
    data[spoilt["warc_record_offset"] + 40] ^= 0xFF
    path.write_bytes(data)
    rows = [row for row in ok if row is not beyond] + [{**beyond, "warc_record_offset": 1 << 30}]
    write_index(tmp_path / "index", rows)
    made = data_recipe(tmp_path / "out", index=str(tmp_path / "index" / "*.parquet"), root=str(crawl.folder))
    made["limits"] = {"max_bad_records": 0.5}
    run(tmp_path, made)
    lost = read_table(Folder(str(tmp_path / "out")), "unreadable").to_pylist()
    assert sorted((row["file"], row["offset"]) for row in lost) == sorted([
        (spoilt["warc_filename"], spoilt["warc_record_offset"]), (beyond["warc_filename"], 1 << 30)
    ])  # fmt: skip
    assert len(documents(tmp_path / "out")) == len(ok) - 2


def test_a_length_that_reaches_into_other_records_reads_the_selected_one_alone(
    crawl: SmallCrawl, whole: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    ok = [row for row in crawl.rows if row["fetch_status"] == 200]
    rows = [{**row, "warc_record_length": row["warc_record_length"] + 5_000} for row in ok[::2]]
    write_index(tmp_path / "index", rows)
    made = data_recipe(tmp_path / "out", index=str(tmp_path / "index" / "*.parquet"), root=str(crawl.folder))
    summary = run(tmp_path, made)
    found = documents(tmp_path / "out")
    assert sorted(row["url"] for row in found.values()) == sorted(row["url"] for row in rows)
    assert summary["num_documents"] == len(rows)
    for doc_id, row in found.items():
        assert {name: row[name] for name in FACTS} == {name: whole[doc_id][name] for name in FACTS}
    assert not read_table(Folder(str(tmp_path / "out")), "unreadable").num_rows


def test_the_records_of_a_file_that_is_not_there_are_lost_alone_and_named(
    crawl: SmallCrawl, tmp_path: Path
) -> None:
    ok = [row for row in crawl.rows if row["fetch_status"] == 200]
    gone = [row for row in ok if row["warc_filename"] == crawl.paths[1]]
    there = [{**row, "warc_filename": "gone.warc.gz"} if row in gone else row for row in ok]
    write_index(tmp_path / "index", there)
    with range_server(crawl.folder, Ranges()) as url:
        made = data_recipe(tmp_path / "out", index=str(tmp_path / "index" / "*.parquet"), root=url)
        made["limits"] = {"max_bad_records": 0.5}
        run(tmp_path, made)
    lost = read_table(Folder(str(tmp_path / "out")), "unreadable").to_pylist()
    assert {(row["file"], row["error"]) for row in lost} == {
        ("gone.warc.gz", "no record is there: its file is not there")
    }
    assert sorted(row["offset"] for row in lost) == sorted(row["warc_record_offset"] for row in gone)
    assert len(documents(tmp_path / "out")) == len(ok) - len(gone) > 0


def test_a_trial_reads_so_many_records(crawl: SmallCrawl, tmp_path: Path) -> None:
    made = data_recipe(tmp_path / "out", index=crawl.index, where=ENGLISH)
    loaded = load(write_recipe(tmp_path / "recipe.toml", made))
    for num in (3, 4):
        trial = trial_of(loaded, num)
        assert process.run(trial, ProgressReporter(quiet=True), trial=True).num_documents == num


def test_an_export_has_the_place_of_each_record_and_the_record_itself(
    crawl: SmallCrawl, tmp_path: Path
) -> None:
    run(tmp_path, data_recipe(tmp_path / "out", index=crawl.index, where=ENGLISH))
    for name in ("jsonl", "warc"):
        to = Folder(str(tmp_path / name))
        export(corpus_export(Folder(str(tmp_path / "out")), to, format=name), in_process)
    expected = [place[:2] for place in rows_of(crawl, is_english)]
    (texts,) = (tmp_path / "jsonl").rglob("*.jsonl.zst")
    unpacked = zstandard.ZstdDecompressor().stream_reader(texts.read_bytes()).read()
    told = map(json.loads, unpacked.splitlines())
    assert [(row["file_path"], row["offset"]) for row in told] == expected
    (written,) = (tmp_path / "warc").rglob("*.warc.gz")
    with open(written, "rb") as file:
        exported = [found.content_stream().read() for found in ArchiveIterator(file)]
    records = []
    for name, offset, length, _ in rows_of(crawl, is_english):
        data = (crawl.folder / name).read_bytes()[offset : offset + length]
        records.append(next(iter(ArchiveIterator(io.BytesIO(data)))).content_stream().read())
    assert exported == records


def test_another_selection_is_another_run(crawl: SmallCrawl, tmp_path: Path) -> None:
    made = data_recipe(tmp_path / "out", index=crawl.index, where=ENGLISH)
    run(tmp_path / "1", made)
    run(tmp_path / "1", made)  # finished: nothing to do
    made["source"][0]["where"] = "content_languages = 'ita'"
    with pytest.raises(RecipeError, match="cannot be continued") as raised:
        run(tmp_path / "2", made)
    assert "source" in str(raised.value) and "where" in str(raised.value)


def test_what_the_index_says_stays_with_the_document_in_a_run_from_its_texts(
    crawl: SmallCrawl, tmp_path: Path
) -> None:
    made = data_recipe(tmp_path / "first", index=crawl.index, where=ENGLISH)
    made["run"]["keep_text"] = True
    run(tmp_path / "1", made)
    made["run"]["output"] = str(tmp_path / "second")
    made["run"]["keep_text"] = False
    made["dedup"] = {"near": False, "exact": False}
    run(tmp_path / "2", made, from_output=str(tmp_path / "first"))
    first, second = documents(tmp_path / "first"), documents(tmp_path / "second")
    columns = ("crawl", "warc_segment", "content_digest", "warc_file", "warc_offset")
    assert {k: [v[c] for c in columns] for k, v in first.items()} == {
        k: [v[c] for c in columns] for k, v in second.items()
    }
    assert all(row["content_digest"] for row in second.values())


WRONG_TABLES = [
    ({"inputs": ["a.warc.gz"], "index": "i.parquet"}, "are both given"),
    ({}, "'source[0].inputs' is missing: give it, or 'source[0].index'"),
    ({"inputs": []}, "name at least one file, glob or URL, or a source.index"),
    ({"inputs": ["a.warc.gz"], "where": "true"}, "source.where of 'web' goes with source.index"),
    ({"inputs": ["a.warc.gz"], "sample": 0.5}, "source.sample of 'web' goes with source.index"),
    ({"index": "i.parquet", "where": " "}, "source.where of 'web' is empty"),
    ({"index": "i.parquet", "format": "jsonl"}, "an index names records of WARC files"),
    ({"index": "i.parquet", "limit_documents": 3}, "with an index give limit"),
    ({"index": "i.parquet", "id_field": "a"}, "which have no fields"),
    ({"index": "i.parquet", "sample": 0.0}, "source[0].sample = 0"),
]


@pytest.mark.parametrize(("table", "said"), WRONG_TABLES)
def test_keys_that_do_not_go_together_are_named(tmp_path: Path, table: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as raised:
        load(write_recipe(tmp_path / "recipe.toml", data_recipe(tmp_path / "out", **table)))
    assert said in str(raised.value)
