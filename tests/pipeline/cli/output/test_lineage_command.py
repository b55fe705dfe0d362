"""`sluice lineage`: what it says of a column whose name SQL reserves."""

from __future__ import annotations

import csv
import io

import pytest

from lineage.storage.folder import Folder
from lineage.store.queries.views import COLUMNS
from pipeline.cli.main import main
from pipeline.cli.output import lineage as command
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.small_out.output import make_small_out


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    small = make_small_out(str(tmp_path_factory.mktemp("small") / "out"))
    purge(small.folder, by_doc(small.named["original"]))
    return small.folder


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SELECT purge_id, at, by, reason FROM purges", "at"),
        ("SELECT AT FROM purges", "at"),
        ("SELECT purge_id FROM purges ORDER  BY at", "at"),
        ("SELECT name FROM exports WHERE at > '2026'", "at"),
        ('SELECT "at", by, reason FROM purges ORDER BY "at"', "by"),
        ("SELECT reason FROM purges GROUP BY by", "by"),
        ("SELECT file, offset, length FROM unreadable", "offset"),
    ],
)
def test_the_bare_name_of_a_reserved_column_is_refused_with_what_to_write(
    sql: str, name: str, out: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    view = "unreadable" if name == "offset" else "purges"
    assert main(["lineage", out.url, sql]) == 2
    assert f'write the column as "{name}" in double quotes, or as {view}.{name}' in capsys.readouterr().err


@pytest.mark.parametrize(
    "sql",
    ["SELECT 'at' FROM", 'SELECT "at" purges.at FROM purges', "SELECT cat, FROM purges ORDER BY 1 OFFSET 2"],
)
def test_another_mistake_has_no_such_hint(sql: str, out: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lineage", out.url, sql]) == 2
    assert "reserved" not in capsys.readouterr().err


def test_what_the_hint_and_the_help_say_to_write_is_answered(
    out: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    quoted, qualified = 'SELECT "at", "by" FROM purges', "SELECT purges.at, purges.by FROM purges"
    told = []
    for sql in (quoted, qualified):
        assert main(["lineage", out.url, sql, "--csv"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] and told[0].startswith("at,by")
    for column, table in (("at", "exports"), ("at", "cache_sweeps"), ("offset", "unreadable")):
        assert main(["lineage", out.url, f'SELECT "{column}", {table}.{column} AS again FROM {table}']) == 0
    with pytest.raises(SystemExit):
        main(["lineage", "--help"])
    helped = " ".join(capsys.readouterr().out.split())
    assert 'write them in double quotes, as in "at"' in helped and "purges.at" in helped


def test_the_help_names_every_view() -> None:
    named = str(command.__doc__).partition("views: ")[2].partition(".")[0]
    assert [name.strip() for name in named.split(",")] == list(COLUMNS)


def test_csv_for_a_spreadsheet_holds_no_formula(out: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "＝1", "a=1", "", "'x"]
    sql = "SELECT " + ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
    told = {}
    for form in ("--csv", "--csv-safe"):
        assert main(["lineage", out.url, f"{sql}, -1, '=2' AS \"=name\"", form]) == 0
        told[form] = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert told["--csv"][1][0] == "=1+1" and told["--csv"][0][-1] == "=name"
    assert told["--csv-safe"][1] == ["'" + text for text in texts[:8]] + [
        *told["--csv"][1][8:11],
        "-1",
        "'=2",
    ]
    assert told["--csv-safe"][0][-1] == "'=name"
