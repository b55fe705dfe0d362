"""SQL over the views: what it shows, what it refuses, and that a question never writes."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from lineage.storage.folder import Folder
from lineage.store.delta import StoreError, append, append_run
from lineage.store.queries.sql import Limits, QueryError, WrongQueryError, query, questions, to_json
from lineage.store.queries.views import COLUMNS
from tests.support.outputs.made_store import (
    NUM,
    doc_id,
    document,
    is_kept,
    make_store,
    purge,
    segment_row,
    table_of,
    train,
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(str(tmp_path_factory.mktemp("store")))
    make_store(folder)
    purge(folder, "p1", [1, 2], "f0", "f1")
    train(folder, segment_row(0, 0, 3, fact=0), segment_row(0, 0, 9, fact=1))
    return folder


ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE hash(a.range + b.range) = 1"


def every_file(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("view", COLUMNS)
def test_each_view_has_its_columns_in_order(out: Folder, view: str) -> None:
    with questions(out) as ask:
        assert ask(f"SELECT * FROM {view}").columns == COLUMNS[view]


def test_ids_are_hex_and_purges_are_an_overlay(out: Folder) -> None:
    rows = query(out, "SELECT doc_id, purged, status FROM documents").objects()
    assert {row["doc_id"] for row in rows} == {doc_id(n).hex() for n in range(NUM)} and len(rows) == NUM
    assert {row["doc_id"] for row in rows if row["purged"] == "p1"} == {doc_id(n).hex() for n in (1, 2)}
    assert query(out, "SELECT count(purged), count(*) FROM placements").rows == [
        (2, sum(map(is_kept, range(NUM))))
    ]


def test_a_document_purged_by_two_purges_stays_one_row(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    purge(out, "p1", [1], "f0", "f1")
    purge(out, "p2", [1], "f1", "f1")
    assert query(out, "SELECT count(*), min(purged) FROM documents").rows == [(NUM, "p2")]


def test_versions_show_the_purges_of_their_time(out: Folder) -> None:
    counts = {v: query(out, "SELECT count(purged) FROM documents", version=v).rows[0][0] for v in (1, 2)}
    assert counts == {1: 0, 2: 2}
    assert query(out, "SELECT count(*) FROM purges", version=1).rows == [(0,)]
    with pytest.raises(StoreError, match="versions 1 to 2"):
        query(out, "SELECT 1", version=3)


def test_training_facts_are_folded(out: Folder) -> None:
    assert query(out, "SELECT run, attempt, last_step FROM training_segments").rows == [("first", 0, 9)]
    append_run(
        out, table_of("training_runs", [{"run": "b", "output": "/b", "plan_fingerprint": "1", "plan": "{}"}])
    )
    append_run(
        out, table_of("training_runs", [{"run": "b", "output": "/b", "plan_fingerprint": "2", "plan": "{}"}])
    )
    assert query(out, "SELECT plan_fingerprint FROM training_runs WHERE run = 'b'").rows == [("2",)]


def test_questions_about_one_state_are_answered_after_a_wrong_one_too(out: Folder) -> None:
    with questions(out, version=1) as ask:
        assert ask("SELECT count(*) FROM purges").rows == [(0,)]
        with pytest.raises(WrongQueryError, match="nothing_of_that_name"):
            ask("SELECT * FROM nothing_of_that_name")
        with pytest.raises(WrongQueryError):
            ask("DROP VIEW documents")
        assert ask("SELECT count(*) FROM documents") == query(
            out, "SELECT count(*) FROM documents", version=1
        )


def test_nan_is_null_and_every_answer_is_json(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out, table_of("documents", [document(n) | {"value": float("nan")} for n in range(5)]))
    assert query(out, "SELECT count(value) FROM documents").rows == [(0,)]
    asked = query(
        out,
        "SELECT TIMESTAMPTZ '2026-01-02 03:04:05+01' AS a, TIMESTAMP '2026-01-02 03:04:05' AS b,"
        " 'nan'::DOUBLE AS c, '\\xAB'::BLOB AS d, [1, 'inf'::DOUBLE] AS e, {'x': DATE '2026-01-02'} AS f,"
        " 1.5::DECIMAL(5,2) AS g, INTERVAL 1 DAY AS h, uuid() AS i, map {1: 2} AS j,"
        " 170141183460469231731687303715884105727::HUGEINT AS k",
    ).objects()[0]
    assert {name: asked[name] for name in "abcdefghj"} == {
        "a": "2026-01-02T02:04:05Z",
        "b": "2026-01-02T03:04:05Z",
        "c": None,
        "d": "ab",
        "e": [1.0, None],
        "f": {"x": "2026-01-02"},
        "g": 1.5,
        "h": 86400.0,
        "j": {"1": 2},
    }
    json.dumps(asked, allow_nan=False)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.binary(), st.lists))
def test_any_value_becomes_json(value: object) -> None:
    told = to_json(value)
    assert json.loads(json.dumps(told, allow_nan=False)) == told


HOSTILE = [
    "COPY documents TO '{folder}/out.csv'",
    "COPY (SELECT 1) TO '{folder}/out.parquet' (FORMAT parquet)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
    "EXPLAIN SELECT 1",
    "SELECT 1; COPY documents TO '{folder}/out.csv'",
    "SELECT 1; SELECT 2",
    "",
    ";",
    "-- nothing",
    "ATTACH '{folder}/new.db' AS new",
    "ATTACH '{folder}/new.db'; CREATE TABLE new.t AS SELECT 1",
    "EXPORT DATABASE '{folder}/dump'",
    "IMPORT DATABASE '{folder}/dump'",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW documents AS SELECT 1",
    "DROP VIEW documents",
    "INSERT INTO _documents SELECT * FROM _documents",
    "UPDATE documents SET status = 'kept'",
    "DELETE FROM documents",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{folder}/evil.duckdb_extension'",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "PRAGMA enable_logging",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "USE memory",
    "BEGIN TRANSACTION",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DETACH memory",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('{folder}/*')",
    "SELECT * FROM read_parquet('{folder}/lineage/documents/*.parquet')",
    "SELECT * FROM read_json('/proc/self/environ')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM '{folder}/lineage/documents/*.parquet'",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM parquet_metadata('{folder}/lineage/documents/*.parquet')",
    "SELECT * FROM 's3://bucket/file.parquet'",
    "SELECT * FROM secret_frame",
    "SELECT * FROM NUM",
    "WITH x AS (SELECT * FROM read_csv('/etc/passwd')) SELECT * FROM x",
    "WITH x AS (INSERT INTO _purges SELECT * FROM _purges RETURNING *) SELECT * FROM x",
    "SELECT getenv('HOME')",
    "SELECT * FROM nothing",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_settings",
    "SELECT sql FROM duckdb_views",
    "SELECT sql FROM duckdb_views()",
    "SELECT * FROM duckdb_databases()",
    "SELECT * FROM duckdb_extensions()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_storage_info('documents')",
    "SELECT * FROM information_schema.views",
    "SELECT * FROM memory.information_schema.views",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM system.main.duckdb_views",
    "SELECT current_setting('temp_directory')",
    "SELECT main.current_setting('memory_limit')",
    "SELECT 1 WHERE CURRENT_SETTING('threads') > 0",
    "SELECT * FROM query('SELECT * FROM duckdb_settings()')",
    "SELECT * FROM query_table('duckdb_settings')",
    "SELECT json_serialize_plan('SELECT * FROM documents')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT (SELECT value FROM duckdb_settings() LIMIT 1)",
    "SELECT * FROM (SHOW ALL TABLES)",
    "SELECT * FROM (SHOW DATABASES)",
    "SELECT * FROM (WITH duckdb_settings AS (SELECT 1) SELECT * FROM duckdb_settings) a, duckdb_settings b",
    "SELECT * FROM _documents",
    "SELECT write_log('x')",
    "SELEC 1",
    "SELECT * FROM documents WHERE doc_id = '",
    "\x00",
]


@pytest.mark.parametrize("sql", HOSTILE)
def test_whatever_is_not_a_select_over_the_views_is_refused_and_leaves_no_trace(
    out: Folder, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_frame = table_of("purges", [])
    assert secret_frame.num_rows == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_SECRET", "hidden")
    before = every_file(Path(out.url))
    with pytest.raises(ValueError) as refusal, questions(out, limits=Limits(seconds=20)) as ask:
        ask(sql.replace("{folder}", out.url))
    assert isinstance(refusal.value, QueryError) and str(refusal.value)
    assert every_file(Path(out.url)) == before and every_file(tmp_path) == {}


def test_a_question_that_takes_too_long_is_stopped(out: Folder) -> None:
    with pytest.raises(QueryError, match=r"more than 0\.2 s"):
        query(out, ENDLESS, limits=Limits(seconds=0.2))


@pytest.mark.slow
def test_a_long_question_draws_no_progress_bar_where_the_answer_goes(out: Folder) -> None:
    """DuckDB draws one on stdout after two seconds, in a process that looks interactive, such as `python
    -c`."""
    asked = (
        "from lineage.store.queries.sql import *\n"
        "from lineage.storage.folder import Folder\n"
        f"try: query(Folder({out.url!r}), {ENDLESS!r}, limits=Limits(seconds=4))\n"
        "except QueryError: print('stopped')"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("stopped\n", "")


def test_a_question_that_needs_too_much_memory_is_stopped(out: Folder) -> None:
    greedy = "SELECT list(r) FROM (SELECT repeat('x', 1000) || range AS r FROM range(10000000))"
    with pytest.raises(QueryError, match="GiB of memory"):
        query(out, greedy, limits=Limits(memory_gib=0.1))


@pytest.mark.parametrize("sql", ["SELECT range(1000000000)", "SELECT repeat('x', 1000000000)"])
def test_one_value_cannot_pass_the_limit_on_memory(out: Folder, sql: str) -> None:
    """Measured on the process that answers, since the value is one piece to DuckDB."""
    asked = (
        "import resource\n"
        "from lineage.store.queries.sql import *\n"
        "from lineage.storage.folder import Folder\n"
        f"try: query(Folder({out.url!r}), {sql!r}, limits=Limits(memory_gib=0.25))\n"
        "except QueryError as error: print(error)\n"
        "print(max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF,"
        " resource.RUSAGE_CHILDREN)))"
    )
    # getrusage counts what this process held when it was forked, and its children with it: a shell in between
    # is small.
    command = shlex.join([sys.executable, "-c", asked])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command}; exit $?"], capture_output=True, text=True, check=True
    )
    *refusal, peak_kib = done.stdout.splitlines()
    assert refusal == ["the query needs more than 0.25 GiB of memory: narrow it"]
    assert int(peak_kib) < 3 << 20, "over the limit by more than what is allocated between two looks"


def test_one_value_cannot_pass_the_limit_on_time(out: Folder) -> None:
    with pytest.raises(QueryError, match=r"more than 0\.5 s"):
        query(
            out,
            "SELECT list_sum(list_transform(range(100000000), lambda x: x % 7))",
            limits=Limits(seconds=0.5),
        )


def test_the_process_that_answers_ends_with_the_one_that_asks(out: Folder) -> None:
    asker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from lineage.store.queries.query import *\nfrom lineage.storage.folder import Folder\n"
            f"query(Folder({out.url!r}), {ENDLESS!r})",
        ],
    )
    children = Path(f"/proc/{asker.pid}/task/{asker.pid}/children")
    while not (found := children.read_text().split()):
        assert asker.poll() is None
        time.sleep(0.01)
    asker.kill()
    asker.wait()
    deadline = time.monotonic() + 60
    while is_alive(int(found[0])) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(int(found[0]))


def is_alive(pid: int) -> bool:
    """Whether a process still works: one that nobody has waited for yet does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_what_serves_a_question_in_its_own_right_is_still_answered(out: Folder) -> None:
    """The list of what may be named is not narrower than the views, WITH, and functions that make rows of
    values."""
    asked = {
        "WITH a AS (SELECT status FROM documents) SELECT count(*) FROM a": NUM,
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT max(n) FROM r": 5,
        "SELECT count(*) FROM range(7), unnest([1, 2])": 14,
        "SELECT count(*) FROM main.documents AS d JOIN DOCUMENTS AS e USING (doc_id)": NUM,
        "SELECT count(*) FROM (SELECT * FROM documents PIVOT (count(*) FOR status IN ('kept')))": None,
        "FROM documents SELECT count(*)": NUM,
        "SELECT count(*) FROM (DESCRIBE documents)": len(COLUMNS["documents"]),
    }
    for sql, expected in asked.items():
        ((found,),) = query(out, sql).rows
        assert found == expected or expected is None, sql


def test_an_answer_too_large_to_hold_is_refused(out: Folder) -> None:
    with pytest.raises(QueryError, match="more than 50 rows"):
        query(out, "SELECT doc_id, url FROM documents", limits=Limits(values=100))
    with pytest.raises(QueryError, match="more than 1 MiB"):
        query(out, "SELECT repeat('x', 4000000)", limits=Limits(answer_mib=1))


def test_a_damaged_file_is_our_damage_and_not_the_users_mistake(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    [file] = Path(out.at("lineage/documents")).glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(os.urandom(len(whole)))
    with pytest.raises(StoreError, match="sluice verify"):
        query(out, "SELECT count(url) FROM documents")
    flipped = bytearray(whole)
    for at in random.Random(0).sample(range(4, len(whole) // 2), 200):
        flipped[at] ^= 0xFF
    file.write_bytes(flipped)
    with pytest.raises(StoreError, match="sluice verify"):
        query(out, "SELECT * FROM documents")


@pytest.mark.parametrize(
    ("sql", "opens_steps"),
    [
        ("SELECT count(*) FROM documents", False),
        ('SELECT count(*) FROM "Documents" WHERE doc_id IN (SELECT doc_id FROM main.edits)', False),
        ("WITH found AS (FROM documents) SELECT count(*) FROM found, purges", False),
        ("WITH found AS (FROM Steps) SELECT count(*) FROM found", True),
        ("SELECT (SELECT count(*) FROM STEPS) FROM documents", True),
        ("SELECT 1", True),
        ("DESCRIBE documents", True),
    ],
)
def test_only_the_tables_that_a_question_names_are_opened(
    tmp_path: Path, sql: str, opens_steps: bool
) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    answer = query(out, sql)
    shutil.rmtree(tmp_path / "lineage" / "steps" / "_delta_log")
    if opens_steps:
        with pytest.raises(StoreError, match="'steps'"):
            query(out, sql)
    else:
        assert query(out, sql) == answer
    with pytest.raises(StoreError, match="'steps'"):
        query(out, sql, version=1)


@pytest.mark.parametrize("column", ["doc_id", "source", "url", "host", "status", "rule", "shard", "purged"])
def test_a_filter_on_any_column_finds_what_grouping_finds(out: Folder, column: str) -> None:
    """Files are pruned by what the log says of their columns: a column of which it says nothing must prune
    none."""
    values = query(out, f"SELECT {column}, count(*) FROM documents GROUP BY 1 ORDER BY 1").rows
    for value, num in values[:: max(1, len(values) // 12)]:  # a question is a process of its own
        literal = f"'{value}'" if isinstance(value, str) else value
        where = f"{column} = {literal}" if value is not None else f"{column} IS NULL"
        assert query(out, f"SELECT count(*) FROM documents WHERE {where}").rows == [(num,)]


def test_another_engine_reads_the_same_files(out: Folder) -> None:
    """DataFusion and Arrow read the tables as DuckDB does, filters included."""
    expected = query(out, "SELECT status, count(*) FROM documents GROUP BY 1 ORDER BY 1").rows
    table = DeltaTable(out.at("lineage/documents"))
    asked = (
        QueryBuilder()
        .register("d", table)
        .execute("SELECT status, count(*) FROM d GROUP BY 1 ORDER BY 1")
        .read_all()
    )
    assert [(s.as_py(), n.as_py()) for s, n in zip(*asked.columns, strict=True)] == expected
    counted = table.to_pyarrow_table()["status"].value_counts().to_pylist()
    assert sorted((entry["values"], entry["counts"]) for entry in counted) == expected
    for status, num in expected:
        assert table.to_pyarrow_table(filters=[("status", "=", status)]).num_rows == num


def test_a_fact_appended_later_is_seen_by_the_next_question(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    make_store(out)
    row = table_of(
        "cache_sweeps", [{"run": "r", "host": "node", "folder": "/c", "content_fingerprint": "f", "at": "t"}]
    )
    assert query(out, "SELECT * FROM cache_sweeps").rows == []
    append(out, "cache_sweeps", row, "sweep")
    assert query(out, "SELECT host FROM cache_sweeps").rows == [("node",)]
    assert pc.sum(pc.equal(row["host"], "node")).as_py() == 1
