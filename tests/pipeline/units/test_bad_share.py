"""The share of records that may be bad: what counts against it, and when a run stops before all is read."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.phases.read import read_job, read_unit
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from pipeline.results.unit_results import CleanPart, ReadResult, RuleCount, UnreadableStretch
from pipeline.units.bad_records import BadRecordWatch, TooManyBadRecordsError, announcement, check_bad_records
from tests.support.inputs.make_warc import good, http, member, page, record
from tests.support.outputs.runs import recipe, write_recipe


def unit(num: int, *, unreadable: int = 0, raised: int = 0) -> ReadResult:
    """What a unit of `num` documents counted."""
    return ReadResult(
        key="key",
        source="web",
        file="a.warc.gz",
        url="/crawl/a.warc.gz",
        num_bytes=num,
        num_records=num,
        by_type={"response": num},
        by_mime={"text/html": num},
        by_status={"200": num},
        unreadable=(UnreadableStretch(7, 1, "damaged"),) * unreadable,
        num_documents=num,
        digest="0",
        rejected=(RuleCount("parse", "parse.error", raised, "0"),),
        num_survivors=num - raised,
        num_chars=num,
        html_bytes=num,
        faults=(),
        seconds={},
        part=CleanPart(file="documents/web/part-00000.parquet", num_rows=num - raised, hash="0"),
    )


def test_a_run_that_goes_on_names_the_files_with_what_is_unreadable_in_them() -> None:
    whole, bad = unit(900), replace(unit(0, unreadable=1), file="bad.jsonl")
    check_bad_records([whole, bad], 0.01)
    assert announcement([whole, bad]) == ["unreadable: bad.jsonl: 1; the first at byte 7: damaged"]
    [*_, last] = announcement([replace(bad, file=f"{number}.jsonl") for number in range(7)])
    assert last == "unreadable: and of 2 more files"


@pytest.mark.parametrize(
    ("counted", "allowed", "stops"),
    [
        (unit(99, unreadable=1), 0.01, False),
        (unit(98, unreadable=2), 0.01, True),
        (unit(100, raised=1), 0.01, False),
        (unit(100, raised=2), 0.01, True),
        (unit(99, unreadable=1, raised=1), 0.01, True),
        (unit(5, unreadable=1), 0.01, False),
        (unit(5, unreadable=1), 0.0, True),
        (unit(0, unreadable=1), 0.01, True),
        (unit(0, unreadable=1), 1.0, False),
        (unit(1, raised=1), 0.01, True),
        # 0.29 * 100 is 28.999999999999996 in floating point.
        (unit(71, unreadable=29), 0.29, False),
        (unit(70, unreadable=30), 0.29, True),
        (unit(0), 0.0, False),
    ],
)
def test_unreadable_records_and_errors_of_steps_count_against_one_share(
    counted: ReadResult, allowed: float, stops: bool
) -> None:
    if not stops:
        check_bad_records([counted], allowed)
        return
    with pytest.raises(TooManyBadRecordsError, match=r"(is|are) bad"):
        check_bad_records([counted], allowed)


@pytest.mark.parametrize(
    ("raised", "allowed", "num_bytes", "stops"),
    [
        (120, 0.01, 400, True),
        (90, 0.01, 400, False),  # not most of them
        (120, 0.01, 401, False),  # less than half is read
        (120, 0.5, 250, False),  # if the rest is good, the share holds
        (120, 0.5, 200, True),
        (114, 0.57, 200, False),
    ],
)
def test_a_run_whose_step_raises_on_most_documents_stops_before_all_is_read(
    raised: int, allowed: float, num_bytes: int, stops: bool
) -> None:
    read = [unit(100, raised=raised // 2), unit(100, raised=raised - raised // 2)]
    watch = BadRecordWatch(allowed=allowed, num_bytes=num_bytes, strict=False)
    watch.see(read[0])
    if not stops:
        watch.see(read[1])
        return
    with pytest.raises(TooManyBadRecordsError, match="raised on 120 of 200"):
        watch.see(read[1])


BAD_AND_SPARSE = replace(unit(200, raised=200), num_bytes=10**8)
GOOD_AND_DENSE = replace(unit(10**6), num_bytes=2 * 10**8)


@pytest.mark.parametrize("read", [(BAD_AND_SPARSE, GOOD_AND_DENSE), (GOOD_AND_DENSE, BAD_AND_SPARSE)])
def test_a_run_that_is_good_in_the_end_does_not_stop_at_its_bad_file_whichever_is_read_first(
    read: tuple[ReadResult, ...],
) -> None:
    watch = BadRecordWatch(allowed=0.01, num_bytes=3 * 10**8, strict=False)
    for each in read:
        watch.see(each)
    check_bad_records(read, 0.01)


def test_what_is_left_counts_as_the_file_with_most_records_in_a_byte() -> None:
    dense, bad = unit(100), replace(unit(1000, raised=1000), num_bytes=1100)
    for num_bytes, stops in ((1200 + 899, True), (1200 + 901, False)):
        watch = BadRecordWatch(allowed=0.5, num_bytes=num_bytes, strict=False)
        watch.see(dense)
        if stops:
            with pytest.raises(TooManyBadRecordsError):
                watch.see(bad)
        else:
            watch.see(bad)


def a_damaged_row_group(path: Path) -> str:
    """A Parquet file of 2,000 rows, the second half of which cannot be decoded."""
    sink = io.BytesIO()
    table = pa.table({"text": [f"row number {number} with some words" for number in range(2000)]})
    pq.write_table(table, sink, row_group_size=1000, compression="zstd", use_dictionary=False)
    data = bytearray(sink.getvalue())
    page = pq.read_metadata(io.BytesIO(bytes(data))).row_group(1).column(0).data_page_offset
    for place in range(page + 40, page + 104):
        data[place] ^= 0xFF
    (path / "a.parquet").write_bytes(data)
    return "a.parquet"


def a_warc_with_a_hole(path: Path) -> str:
    """A WARC of 100 records, of which bytes of zero replace the second half."""
    records = [member(good(f"page-{number}")) for number in range(100)]
    whole = b"".join(records[:50])
    (path / "a.warc.gz").write_bytes(whole + bytes(len(b"".join(records[50:]))))
    return "a.warc.gz"


def jsonl_damaged_half_way(path: Path) -> str:
    """JSONL of 40,000 rows in one gzip member, whose stored blocks end in nonsense half way."""
    data = gzip.compress(b"".join(b'{"text": "row number %07d"}\n' % number for number in range(40_000)), 0)
    half = len(data) // 2
    (path / "a.jsonl.gz").write_bytes(data[:half] + b"\xff" * (len(data) - half))
    return "a.jsonl.gz"


def result_of(tmp_path: Path, write: Callable[[Path], str]) -> ReadResult:
    """What reading the file that `write` writes comes to."""
    plain = recipe(str(tmp_path / "out"), {"web": (str(tmp_path / write(tmp_path)),)})
    plan = plan_run(load(write_recipe(tmp_path / "recipe.toml", plain)))
    return read_unit(replace(read_job(plan.recipe), key=plan.key), plan.units[0])


@pytest.mark.parametrize("write", [a_damaged_row_group, a_warc_with_a_hole, jsonl_damaged_half_way])
def test_half_a_file_that_cannot_be_read_counts_as_many_records_as_the_other_half(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    result = result_of(tmp_path, write)
    assert len(result.unreadable) <= 2
    with pytest.raises(TooManyBadRecordsError, match=r"(is|are) unreadable"):
        check_bad_records([result], 0.3)
    lost = sum(stretch.num_records for stretch in result.unreadable)
    assert lost == pytest.approx(result.num_records, rel=0.25)


def a_warc_with_a_damaged_page(path: Path) -> str:
    """A WARC of pages of unlike lengths, one of which is damaged."""
    pages = [member(record(http(page("a") + bytes(range(256)) * 30 * number))) for number in range(5)]
    (path / "a.warc.gz").write_bytes(b"".join([*pages, pages[3][:-20], *pages]))
    return "a.warc.gz"


def bad_lines_of_any_length(path: Path) -> str:
    """JSONL whose only bad line is a thousand times as long as the others."""
    (path / "a.jsonl").write_bytes(b'{"text": "a row"}\n' * 20 + b"x" * 20_000 + b"\n")
    return "a.jsonl"


@pytest.mark.parametrize("write", [a_warc_with_a_damaged_page, bad_lines_of_any_length])
def test_what_may_be_one_record_counts_as_one(tmp_path: Path, write: Callable[[Path], str]) -> None:
    result = result_of(tmp_path, write)
    assert [stretch.num_records for stretch in result.unreadable] == [1]
    check_bad_records([result], 0.01)


def test_a_file_whose_window_is_too_wide_is_not_offered_for_mending() -> None:
    wide = "a zstd frame refers back over 2147483648 bytes, more than limits.max_window_bytes = 134217728: set it"
    units = [replace(unit(1), unreadable=(UnreadableStretch(0, 0, wide, 1),))]
    with pytest.raises(TooManyBadRecordsError) as raised:
        check_bad_records(units, 0.0)
    assert "\nSet limits.max_window_bytes as is said there, or raise the limit" in str(raised.value)
    with pytest.raises(
        TooManyBadRecordsError, match=r"Mend or leave out these files, set limits\.max_window_bytes as"
    ):
        check_bad_records([*units, unit(1, unreadable=1)], 0.0)
