"""One flipped bit anywhere in a finished output: every answer is the right one, or an error that names the
file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.ids import text_hash
from lineage.index.output_index import read_index
from lineage.storage.folder import Folder, StorageError
from lineage.store import checked, write
from lineage.store.delta import StoreError
from lineage.store.queries.query import QueryError, query
from lineage.store.queries.sql import questions
from lineage.store.tables import PART
from lineage.trace.tracer import Functions, Tracer, UnknownError
from pipeline.results.rows import RowWriter, clean_texts, read_rows, read_texts
from tests.support.outputs.small_out.output import make_small_out

pytestmark = pytest.mark.hostile("lineage")

SQL = (
    "SELECT status, rule, count(*), count(url), sum(warc_offset) FROM documents GROUP BY 1, 2 ORDER BY ALL",
    "SELECT source, shard, count(*), max(start), sum(num_tokens) FROM placements GROUP BY 1, 2 ORDER BY ALL",
    "SELECT doc_id, record_id, host, cluster_id FROM documents WHERE status <> 'kept' ORDER BY ALL",
    "SELECT * FROM steps ORDER BY ALL",
    "SELECT * FROM step_rules ORDER BY ALL",
    "SELECT kind, sum(count) FROM edits GROUP BY 1 ORDER BY ALL",
    "SELECT count(*) FROM documents",
    "SELECT source, file, num_records FROM inputs ORDER BY ALL",
)
ABSENT = b"\x5a" * 16
UNKNOWN = "unknown"

Ask = Callable[[], object]


@dataclass(frozen=True)
class Asked:
    """A finished output, and what may be asked about it, by name."""

    out: Folder
    questions: dict[str, Ask]


def ask_trace(out: Folder, way: str, *name: Any) -> object:
    """What `trace` says, as its JSON."""
    tracer = Tracer(out, Functions())
    try:
        found = getattr(tracer, way)(*name)
    except UnknownError:
        return UNKNOWN
    histories = found[0] if isinstance(found, tuple) else found if isinstance(found, list) else [found]
    return json.dumps([history.as_json() for history in histories])


def ask_sql(out: Folder, sql: str) -> object:
    """What our own questions are told: in this process."""
    with questions(out) as ask:
        return ask(sql).rows


def make_questions(out: Folder) -> dict[str, Ask]:
    """Every direction of trace for every document, what is not there, and SQL."""

    def traced(way: str, *name: Any) -> Ask:
        return lambda: ask_trace(out, way, *name)

    asked: dict[str, Ask] = {f"sql {sql}": (lambda sql=sql: ask_sql(out, sql)) for sql in SQL}
    rows = query(out, "SELECT * FROM documents ORDER BY doc_id").objects()
    for row in rows:
        name = str(row["doc_id"])
        asked[f"id {name}"] = traced("by_id", bytes.fromhex(name))
        for column in ("raw_hash", "text_hash", "clean_hash", "tokens_hash"):
            if row[column] is not None:
                asked[f"{column} {row[column]}"] = traced("by_hash", bytes.fromhex(str(row[column])))
        if row["url"] is not None:
            asked[f"url {row['url']}"] = traced("by_url", row["url"])
            asked[f"host {row['host']}"] = traced("by_host", row["host"])
        if row["warc_file"] is not None:
            place = (row["warc_file"], row["warc_offset"])
            asked[f"place {place}"] = traced("by_place", *place)
        if row["shard"] is not None:
            token = (row["source"], row["shard"], row["start"])
            asked[f"token {token}"] = traced("by_token", *token)
    asked |= {
        "absent id": traced("by_id", ABSENT),
        "absent hash": traced("by_hash", text_hash("nobody wrote this")),
        "absent url": traced("by_url", "https://nowhere.example/none"),
        "absent host": traced("by_host", "nowhere.example"),
        "absent place": traced("by_place", "nowhere.warc.gz", 3),
    }
    return asked


@pytest.fixture(scope="module", params=[16_384, 8], ids=["one row group", "many row groups"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """An output whose files have one row group, which are checked whole, or several, which have side
    files."""
    url = str(tmp_path_factory.mktemp("flipped") / "out")
    with pytest.MonkeyPatch.context() as patch:
        for module in (checked, write):
            patch.setattr(module, "GROUP_ROWS", request.param)
        make_small_out(url, per_file=40)
        out = Folder(url)
        yield Asked(out, make_questions(out))


def check_flips(asked: Asked, rng: random.Random, num_flips: int, num_questions: int) -> tuple[int, int]:
    """Flip bits, one at a time, and ask: how many answers were right and how many were errors."""
    names = asked.out.names()
    store = [name for name in names if name.startswith("lineage/") or name == "checksums.json"]
    right: dict[str, object] = {}
    num_right = num_errors = 0
    for number in range(num_flips):
        file = Path(asked.out.at(rng.choice(store if number % 8 else names)))
        whole = file.read_bytes()
        if not whole:
            continue
        chosen = [*rng.sample(sorted(asked.questions), num_questions - 1), f"sql {rng.choice(SQL)}"]
        for name in chosen:
            if name not in right:
                right[name] = asked.questions[name]()
        bit = rng.randrange(8 * len(whole))
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        try:
            for name in chosen:
                try:
                    answer = asked.questions[name]()
                except (StoreError, StorageError, QueryError) as error:
                    assert file.name in str(error) and "sluice verify" in str(error), (bit, file, name)
                    num_errors += 1
                else:
                    assert answer == right[name], f"bit {bit} of {file} changes the answer to: {name}"
                    num_right += 1
        finally:
            file.write_bytes(whole)
    return num_right, num_errors


def test_a_flipped_bit_gives_the_right_answer_or_an_error_that_names_the_file(asked: Asked) -> None:
    num_right, num_errors = check_flips(asked, random.Random(1), 30, 6)
    assert num_right > 20 and num_errors > 20


@pytest.mark.slow
@pytest.mark.timeout(2 * 3600)
def test_a_thousand_flipped_bits_under_ten_thousand_questions_give_no_wrong_answer(asked: Asked) -> None:
    num_right, num_errors = check_flips(asked, random.Random(2), 1000, 10)
    assert num_right + num_errors >= 9_900 and num_right > 500 and num_errors > 500


def test_every_bit_of_what_the_log_says_of_a_file_is_checked(asked: Asked) -> None:
    """The bounds in the log and a misspelt action hide whole files: no answer may rest on them unseen."""
    log = Path(asked.out.at("lineage/documents/_delta_log/00000000000000000000.json"))
    whole = log.read_bytes()
    name = next(name for name in asked.questions if name.startswith("id "))
    right = asked.questions[name]()
    places = [whole.index(part) for part in (b'"add"', b"minValues", b"maxValues", b"numRecords")]
    try:
        for at in places:
            for bit in range(8):
                damaged = bytearray(whole)
                damaged[at + 3] ^= 1 << bit
                log.write_bytes(damaged)
                with pytest.raises(StoreError, match=r"0\.json is damaged.*sluice verify"):
                    asked.questions[name]()
    finally:
        log.write_bytes(whole)
    assert asked.questions[name]() == right


def test_a_flipped_bit_in_texts_keys_or_places_is_never_read_over(asked: Asked) -> None:
    """Files that the index covers: whole reads compare its hash."""
    index, rng = read_index(asked.out), random.Random(3)
    part, keys, shard = index.documents[0], index.dedup[0], index.shards[0]
    reads: list[tuple[str, Ask]] = [
        (part.file, lambda: list(clean_texts(asked.out, part))),
        (keys.file, lambda: read_rows(asked.out, keys.file, ["doc_id"], keys.hash)),
        (shard.index_file, lambda: read_rows(asked.out, shard.index_file, ["start"], shard.index_hash)),
    ]
    for name, read in reads:
        read()
        for whole in flipped(Path(asked.out.at(name)), rng, 40):
            assert whole
            with pytest.raises(StorageError, match=f"{Path(name).name}.*sluice verify"):
                read()


def flipped(file: Path, rng: random.Random, times: int) -> Iterator[bytes]:
    """The file with another bit flipped each time, and whole again after; yields its whole content."""
    whole = file.read_bytes()
    try:
        for _ in range(times):
            bit = rng.randrange(8 * len(whole))
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            file.write_bytes(damaged)
            yield whole
    finally:
        file.write_bytes(whole)


def test_pages_that_a_run_writes_carry_checksums_and_a_point_read_of_a_text_checks_them(
    tmp_path: Path,
) -> None:
    """Reading one row group of a large part, nobody hashes the whole of it: every flip within its pages is
    found."""
    folder = Folder(str(tmp_path))
    texts = [f"text number {number}" for number in range(500)]
    with RowWriter(folder, "part.parquet", PART) as writer:
        for number, text in enumerate(texts):
            writer.add({"doc_id": number.to_bytes(16, "big"), "text": text})
    column = pq.read_metadata(tmp_path / "part.parquet").row_group(0).column(1)
    end = column.dictionary_page_offset + column.total_compressed_size
    file = tmp_path / "part.parquet"
    whole = file.read_bytes()
    for at in range(end - 60, end):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(StorageError, match=r"part\.parquet.*sluice verify"):
            read_texts(folder, "part.parquet", [3])
    file.write_bytes(whole)
    assert read_texts(folder, "part.parquet", [3]) == {3: texts[3]}
