"""What is lost in stretches counts by its bytes: a file that breaks off, a damaged part of one."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.phases.read import read_job, read_unit
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from pipeline.results.unit_results import ReadResult
from pipeline.units.bad_records import TooManyBadRecordsError, check_bad_records, unread_of
from tests.support.inputs.make_warc import good, member
from tests.support.outputs.runs import recipe, write_recipe

ROWS = [
    b'{"id": "%d", "text": "row %d of a file, %s"}\n' % (n, n, str(n * 7919 % 104729).encode() * 9)
    for n in range(400)
]
JSONL = b"".join(ROWS)
PAGES = [good(f"page-{number}") for number in range(100)]
CUT = 0.05


def parquet(num_groups: int = 4) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": [row.decode() for row in ROWS]})
    pq.write_table(table, sink, row_group_size=len(ROWS) // num_groups, use_dictionary=False)
    return sink.getvalue()


def wacz() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as packed:
        packed.writestr("archive/a.warc.gz", b"".join(map(member, PAGES)))
        packed.writestr("datapackage.json", "{}")
    return sink.getvalue()


WHOLE: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: JSONL,
    "a.jsonl.gz": lambda: gzip.compress(JSONL),
    "a.json.zst": lambda: zstandard.compress(JSONL),
    "a.jsonl.bz2": lambda: bz2.compress(JSONL, 1),
    "a.jsonl.xz": lambda: lzma.compress(JSONL),
    "a.warc": lambda: b"".join(PAGES),
    "a.warc.gz": lambda: b"".join(map(member, PAGES)),
    "a.one-member.warc.gz": lambda: gzip.compress(b"".join(PAGES)),
    "a.warc.zst": lambda: b"".join(map(zstandard.compress, PAGES)),
    "a.warc.bz2": lambda: bz2.compress(b"".join(PAGES), 1),
    "a.warc.xz": lambda: lzma.compress(b"".join(PAGES)),
    "a.wacz": wacz,
    "a.parquet": parquet,
}


def read(folder: Path, files: dict[str, bytes], **source: int) -> list[ReadResult]:
    """What reading these files of one source comes to."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    plain = recipe(str(folder / "out"), {"web": (str(folder / "[ab].*"),)})
    plain["source"][0] |= {"steps": ["url", "parse", "identity"], **source}
    plan = plan_run(load(write_recipe(folder / "recipe.toml", plain)))
    job = replace(read_job(plan.recipe), key=plan.key)
    results = [read_unit(job, unit) for unit in plan.units]
    shutil.rmtree(folder)
    return results


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_breaks_off_counts_as_a_whole_whatever_it_is(tmp_path: Path, name: str) -> None:
    whole = WHOLE[name]()
    cut = whole[: max(int(len(whole) * CUT), 30) + 3]
    good_one, *_ = read(tmp_path / "1", {name: whole})
    check_bad_records([good_one], 0.0)
    files = {name: cut} | {"b" + name[1:]: whole}
    results = read(tmp_path / "2", files)
    unread = unread_of(results)
    assert unread is not None
    assert unread.num_broken_off == 1
    assert unread.share == pytest.approx(0.5, abs=0.01), "as if it had the bytes of the other one"
    num_lost = good_one.num_records - results[0].num_records
    assert unread.num_records == pytest.approx(num_lost, rel=0.15)
    with pytest.raises(TooManyBadRecordsError, match=r"\(50%\) were not read.*a file breaks off") as raised:
        check_bad_records(results, 0.4)
    assert "how much is missing is not known" in str(raised.value)
    check_bad_records(results, 0.6)


def flipped(data: bytes, place: float, num: int = 64) -> bytes:
    """The data with some damaged bytes at this share of them."""
    at = int(len(data) * place)
    return data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + num]) + data[at + num :]


STORED = gzip.compress(b'{"text": "%07d"}\n' * 60_000 % tuple(range(60_000)), 0)
DAMAGED: dict[str, tuple[str, Callable[[], bytes], float]] = {
    "the rest of a gzip file": ("a.jsonl.gz", lambda: STORED[: len(STORED) // 2] + b"\xff" * (len(STORED) // 2), 0.5),
    "the rest behind a good member": (
        "a.jsonl.gz", lambda: gzip.compress(JSONL) + flipped(gzip.compress(JSONL), 0.3) + gzip.compress(JSONL), 0.66,
    ),
    "a refuted member": ("a.jsonl.gz", lambda: gzip.compress(JSONL)[:-8] + b"\x00" * 8, 1.0),
    "a row group": ("a.parquet", lambda: flipped(parquet(), 0.1), 0.25),
    "a row group of two": ("a.parquet", lambda: flipped(parquet(2), 0.6), 0.5),
    "a hole among members": (
        "a.warc.gz", lambda: b"".join(map(member, PAGES[:60])) + bytes(len(b"".join(map(member, PAGES[60:])))), 0.4,
    ),
    "a hole in a plain file": (
        "a.warc", lambda: b"".join(PAGES[:50]) + b"#" * len(b"".join(PAGES[50:75])) + b"".join(PAGES[75:]), 0.25,
    ),
    "what is no WARC": ("a.warc", lambda: b"no record\n" * 500, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_the_share_of_a_damaged_file_that_was_not_read_counts(tmp_path: Path, damage: str) -> None:
    name, make, share = DAMAGED[damage]
    results = read(tmp_path / "in", {name: make()})
    unread = unread_of(results)
    assert unread is not None
    assert unread.num_broken_off == 0
    assert unread.share == pytest.approx(share, abs=0.1)
    with pytest.raises(TooManyBadRecordsError, match="were not read"):
        check_bad_records(results, share / 2)


FORGIVEN: dict[str, tuple[str, Callable[[], bytes]]] = {
    "garbage behind a gzip file": ("a.jsonl.gz", lambda: gzip.compress(JSONL) + b"<html>"),
    "garbage behind members": ("a.warc.gz", lambda: b"".join(map(member, PAGES)) + b"<html>"),
    "a bad row of many": ("a.jsonl", lambda: b"".join([*ROWS[:200], b"{oops}\n", *ROWS[200:]])),
    "a damaged page of many": (
        "a.warc.gz", lambda: b"".join([*map(member, PAGES[:50]), member(PAGES[50])[:-9], *map(member, PAGES[51:])]),
    ),
    "a last line without its end": ("a.jsonl", JSONL.rstrip),
}  # fmt: skip


@pytest.mark.parametrize("damage", FORGIVEN)
def test_what_is_bad_one_by_one_counts_as_records_alone(tmp_path: Path, damage: str) -> None:
    name, make = FORGIVEN[damage]
    results = read(tmp_path / "in", {name: make()})
    check_bad_records(results, 0.01)
    unread = unread_of(results)
    assert unread is None or unread.share < 0.01


def test_what_lies_behind_the_documents_that_were_asked_for_is_not_unread(tmp_path: Path) -> None:
    whole = gzip.compress(JSONL)
    results = read(tmp_path / "in", {"a.jsonl.gz": whole[: len(whole) // 2]}, limit_documents=20)
    assert (results[0].num_documents, unread_of(results)) == (20, None)
    check_bad_records(results, 0.0)


def test_the_verdict_is_the_same_in_every_order_and_read_back(tmp_path: Path) -> None:
    whole = gzip.compress(JSONL)
    files = {"a.1.jsonl.gz": whole[:200], "a.2.jsonl.gz": whole, "b.1.jsonl.gz": flipped(whole, 0.3)}
    results = read(tmp_path / "in", files)
    found = {repr(unread_of(order)) for order in itertools.permutations(results)}
    again = [ReadResult.from_json(result.to_json()) for result in results]
    assert found == {repr(unread_of(again))}
