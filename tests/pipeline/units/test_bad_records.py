"""What readers and steps raise on single records: the run goes on, says so, and ends where it is more than a
few."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from pipeline.phases.read import read_job, read_unit
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from stages.reading.reader import ReadOptions, Unreadable, read_documents
from stages.reading.warc import record
from tests.support.checkout import ROOT
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, write_recipe

STEPS = "tests.support.steps.failing_steps"
SECRET = "the harbour master of page"


def line_of(function: str, what: str) -> int:
    """The line of failing_steps.py at which `what` stands in a function."""
    lines = (ROOT / "tests" / "support" / "steps" / "failing_steps.py").read_text().splitlines()
    start = lines.index(next(line for line in lines if line.startswith(f"def {function}(")))
    return next(number for number, line in enumerate(lines[start:], start + 1) if what in line)


def made(folder: Path, step: str | None, num: int = 20, **tables: dict[str, Any]) -> Path:
    """A recipe over `num` rows of JSONL whose own step stands behind parse."""
    rows = [
        {"id": str(number), "text": f"{SECRET} {number} went home before the rain."} for number in range(num)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = recipe(str(folder / "out"), {"web": (str(folder / "rows.jsonl"),)}, **tables)
    plain["source"][0]["steps"] = [
        "url",
        "parse",
        *([f"tests.support.steps.failing_steps:{step}"] if step else []),
        "identity",
    ]
    return write_recipe(folder / "recipe.toml", plain)


def test_a_step_that_raises_on_every_document_ends_the_run_and_shows_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(made(tmp_path, "fail"))]) == 1
    said = capsys.readouterr().err
    assert "20 of 20 records are bad, more than limits.max_bad_records = 0.01" in said
    line = line_of("fail", "raise")
    assert f"{STEPS}:fail: KeyError at {STEPS}, line {line}, in fail, 20 ×; first on document " in said
    assert f'failing_steps.py", line {line}, in fail' in said
    assert "raise KeyError(document.text)" in said
    assert f"(rows.jsonl at 0): '{SECRET} 0" in said, "what the exception says is shown to who runs it"
    assert not (tmp_path / "out" / "index.json").exists()


def test_a_step_that_raises_on_a_few_documents_is_said_and_reported_once_and_quotes_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path, "fail_on_seven", limits={"max_bad_records": 0.1})
    assert main(["run", str(path)]) == 0
    printed = capsys.readouterr()
    where = (
        f"ValueError at tests.support.steps.failing_steps, line"
        f" {line_of('fail_on_seven', 'raise')}, in fail_on_seven"
    )
    assert f"tests.support.steps.failing_steps:fail_on_seven: {where}, 1 ×" in printed.err
    assert f"no use for {SECRET} 7" in printed.err
    out = Folder(str(tmp_path / "out"))
    assert not verify(out, verify_hooks(out)).problems
    rows = query(out, "SELECT record_id, rule FROM documents WHERE status = 'rejected'").rows
    assert rows == [("7", "tests.support.steps.failing_steps:fail_on_seven.error")]
    report = out.read("report.html").decode()
    assert report.count(where) == 1
    assert "raise ValueError(f&#34;no use for {document.text}&#34;)" in report
    (fault,) = json.loads(out.read("run.json"))["faults"]
    assert (fault["num"], fault["file"], fault["message"]) == (1, "rows.jsonl", "")
    kept = [name for name in out.names() if f"no use for {SECRET}".encode() in out.read(name)]
    assert kept == [], "an exception's message may quote the page, and stays out of the output"


def test_strict_stops_at_the_first_exception_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path, "fail_on_seven", limits={"max_bad_records": 1.0})
    assert main(["run", str(path), "--strict"]) == 1
    said = capsys.readouterr().err
    assert "--strict: stopped at the first record on which something raised" in said
    assert f'failing_steps.py", line {line_of("fail_on_seven", "raise")}, in fail_on_seven' in said
    assert "rows.jsonl was read" in said
    assert main(["run", str(path)]) == 0, "the same call without it goes on"
    assert main(["run", str(made(tmp_path, None)), "--set", f"run.output={tmp_path}/2", "--strict"]) == 0


def test_a_document_that_no_table_can_hold_is_its_step_s_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(made(tmp_path, "give_no_text"))]) == 1
    assert "gave language a dict: expected a text" in capsys.readouterr().err


def test_memory_that_is_used_up_is_no_rejection(tmp_path: Path) -> None:
    recipe_ = load(made(tmp_path, "run_out_of_memory"))
    with pytest.raises(MemoryError) as raised:
        read_unit(read_job(recipe_), plan_run(recipe_).units[0])
    assert raised.value.__notes__ == [f"while {tmp_path}/rows.jsonl was read"]


def half_a_table(folder: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"]}), folder / "a.parquet")
    data = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("allowed", ["0.01", "1.0"])
@pytest.mark.parametrize(
    ("write", "said"),
    [
        (half_a_table, "not a whole Parquet file"),
    ],
)
def test_a_run_that_could_read_no_record_ends_with_1_and_names_file_and_reason(
    write: Callable[[Path], None], said: str, allowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in")
    path = write_recipe(
        tmp_path / "recipe.toml", recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "in" / "*"),)})
    )
    for _ in range(2 if allowed == "1.0" else 1):  # finished, it says the same again
        assert main(["run", str(path), "--set", f"limits.max_bad_records={allowed}"]) == 1
        printed = capsys.readouterr().err
        assert f"{next((tmp_path / 'in').iterdir()).name}: 1; the first at byte 0: " in printed
        assert said in printed


def test_a_run_that_keeps_nothing_ends_with_1_and_names_the_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path, None)
    path.write_text(
        path.read_text()
        .replace('"parse",', '"parse", "quality",')
        .replace("steps =", 'language = "en"\nsteps =')
    )
    assert main(["run", str(path), "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["num_kept"] == 0
    assert (
        "no document is left of 20; they were rejected by\n  gopher_quality.too_few_words: 20" in printed.err
    )
    assert (tmp_path / "out" / "index.json").exists(), "the output tells of each document"


def test_records_that_are_no_documents_are_named_by_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\ngone"
    head = f"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: {len(block)}\r\n\r\n".encode()
    (tmp_path / "a.warc").write_bytes(head + block + b"\r\n\r\n")
    path = write_recipe(
        tmp_path / "r.toml", recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "a.warc"),)})
    )
    assert main(["run", str(path)]) == 1
    assert "none of the 1 records read is a document" in (said := capsys.readouterr().err)
    assert "status: 404 1" in said


def a_bug(payload: bytes, encoding: str | None, limit: int) -> bytes:
    """A decoder with a bug that some payloads meet."""
    if payload.startswith(b"odd"):
        raise ZeroDivisionError(payload)
    return payload


def test_a_bug_in_a_reader_costs_the_record_it_meets_and_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "decode_body", a_bug)
    blocks = [b"first page", b"odd page", b"last page"]
    data = b"".join(
        b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
        % (len(block), block)
        for block in blocks
    )
    first, bad, last = read_documents(io.BytesIO(data), ReadOptions(source="s", file="x.warc"))
    assert (first.text, last.text) == ("first page", "last page")  # type: ignore[union-attr]
    assert isinstance(bad, Unreadable)
    assert bad.error.startswith(f"reading it raised ZeroDivisionError at {__name__}, line ")
    assert bad.fault is not None
    assert "a_bug" in bad.fault.traceback
    assert "odd page" not in bad.error + bad.fault.traceback


class Broken(io.BytesIO):
    """A stream whose connection breaks off in the middle."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 4:
            raise OSError("the connection broke off")
        return super().read(4 if size is None or size < 0 else min(size, 4))


@pytest.mark.parametrize("name", ["x.warc", "x.warc.gz", "x.jsonl", "x.parquet", "x"])
def test_a_stream_that_fails_is_never_taken_for_damaged_content(name: str) -> None:
    with pytest.raises(OSError, match="the connection broke off"):
        list(read_documents(Broken(b"PAR1" + bytes(1 << 20) + b"PAR1"), ReadOptions(source="s", file=name)))
