"""A folder of texts and a checkout, from a run to a purge and its proof; what gave up goes on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.inputs import bundles
from pipeline.inspect.hooks import verify_hooks
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint, recipe, write_recipe

STEPS = ["url", "parse", "identity", "dedup.exact"]


def written(folder: Path) -> None:
    """Texts in folders, one twice; a binary file, an empty one, hidden ones, and rows under the name of a
    text."""
    files: dict[str, bytes] = {f"part/{n:02}.txt": b"Text number %d of a folder.\n" % n for n in range(12)}
    files |= {
        "add.py": b"def add(a, b):\n    return a + b\n",
        "copy/add.py": b"def add(a, b):\n    return a + b\n",
        "logo.txt": b"\x89PNG\r\n\x1a\n\x00\x00",
        "pkg/__init__.py": b"",
        ".git/config.txt": b"hidden",
        "rows.txt": b'{"id": "r", "text": "A row in a file of rows."}\n',
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def made(tmp_path: Path, out: str, **tables: dict[str, Any]) -> Path:
    plain = recipe(
        str(tmp_path / out), {"own": (str(tmp_path / "in/**/*.txt"), str(tmp_path / "in/**/*.py"))}, **tables
    )
    plain["source"][0]["steps"] = STEPS
    return write_recipe(tmp_path / f"{out}.toml", plain)


def test_a_folder_of_texts_goes_from_a_run_to_a_purge_and_its_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "in")
    path = made(tmp_path, "out", run={"keep_text": True})
    assert main(["run", str(path)]) == 0
    out = Folder(str(tmp_path / "out"))
    assert len(query(out, "SELECT DISTINCT part FROM documents WHERE part IS NOT NULL").rows) == 1
    rows = query(out, "SELECT record_id, warc_file, status FROM documents ORDER BY 2").rows
    assert [row[1] for row in rows] == [
        "add.py", "copy/add.py", *(f"part/{n:02}.txt" for n in range(12)), "rows.txt",
    ]  # fmt: skip
    assert all(record in (name, "r") for record, name, _ in rows)
    assert [status for *_, status in rows].count("duplicate") == 1
    inputs = query(out, "SELECT file, num_records, notes FROM inputs ORDER BY 1").rows
    notes = {Path(name).name: note for name, _, note in inputs}
    assert (len(inputs), sum(num for _, num, _ in inputs)) == (17, 15)
    assert (notes["logo.txt"], notes["__init__.py"]) == ('{"binary": 1}', '{"empty": 1}')
    summary = json.loads(out.read("run.json"))
    assert (summary["num_files"], summary["num_unreadable"], summary["unread"]) == (17, 0, None)
    assert not verify(out, verify_hooks(out)).problems

    assert main(["run", str(made(tmp_path, "again")), "--from", str(tmp_path / "out")]) == 0
    monkeypatch.setattr(bundles, "_MOST_FILES", 4)
    assert main(["run", str(made(tmp_path, "small"))]) == 0
    one, two = (Folder(str(tmp_path / name)) for name in ("again", "small"))
    shown = "SELECT doc_id, warc_file, status, stage, text_hash FROM documents ORDER BY 1, 2"
    assert query(one, shown).rows == query(two, shown).rows == query(out, shown).rows
    capsys.readouterr()

    text = tmp_path / "in/part/03.txt"
    assert main(["explain", str(path), "--file", str(text), "--json"]) == 0
    doc_id = json.loads(capsys.readouterr().out)["doc_id"]
    assert main(["explain", str(tmp_path / "out"), "--doc", doc_id]) == 0
    assert main(["trace", str(tmp_path / "out"), "--warc", "part/03.txt", "--offset", "0"]) == 0
    assert doc_id in capsys.readouterr().out
    purge = ["purge", str(tmp_path / "out"), "--doc", doc_id, "--reason", "asked", "--by", "me", "--apply"]
    assert main(purge) == 0
    assert not verify(out, verify_hooks(out)).problems
    assert not [name for name in out.names() if b"Text number 3 of" in out.read(name)]


def test_a_run_from_texts_gives_the_bytes_of_a_run_from_files(tmp_path: Path) -> None:
    written(tmp_path / "in")
    assert main(["run", str(made(tmp_path, "first", run={"keep_text": True}))]) == 0
    stricter = {"dedup": {"exact": False}}
    assert main(["run", str(made(tmp_path, "from", **stricter)), "--from", str(tmp_path / "first")]) == 0
    assert main(["run", str(made(tmp_path, "whole", **stricter))]) == 0
    found, wanted = (fingerprint(str(tmp_path / name)) for name in ("from", "whole"))
    assert found == wanted


def many(tmp_path: Path, num: int, limit: float = 0.01) -> Path:
    rows = [json.dumps({"text": f"row {n} of {num}"}).encode() + b"\n" for n in range(200)]
    for number in range(num):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(gzip.compress(b"%d\n" % number * 0 + b"".join(rows)))
    plain = recipe(
        str(tmp_path / "out"), {"web": (str(tmp_path / "*.gz"),)}, limits={"max_bad_records": limit}
    )
    plain["source"][0]["steps"] = STEPS
    return write_recipe(tmp_path / "recipe.toml", plain)


@pytest.mark.parametrize("mend", ["mended", "left out", "the limit is raised"])
def test_a_run_that_ended_at_the_limit_goes_on_by_the_same_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mend: str
) -> None:
    path, broken = many(tmp_path, 4), tmp_path / "3.jsonl.gz"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:300])
    assert main(["run", str(path)]) == 1
    said = capsys.readouterr().err
    assert "were not read, about" in said
    assert "make the same call again: it goes on from the files that were read" in said
    assert main(["run", str(path)]) == 1, "nothing was mended"
    assert "goes on with" not in capsys.readouterr().err
    call = ["run", str(path)]
    if mend == "mended":
        broken.write_bytes(whole)
    elif mend == "left out":
        broken.unlink()
    else:
        call += ["--set", "limits.max_bad_records=0.5"]
    read = {file: file.stat().st_mtime_ns for file in (tmp_path / "out/work/units").rglob("unit.json")}
    assert main(call) == 0
    num_kept, num_files = {"mended": (3, 4), "left out": (3, 3)}.get(mend, (4, 4))
    assert len(read) == 4
    said = capsys.readouterr().err
    assert f"it goes on with what was read of {num_kept} of {num_files} input files" in said
    out = Folder(str(tmp_path / "out"))
    assert not verify(out, verify_hooks(out)).problems
    unread = json.loads(out.read("run.json"))["unread"]
    assert (unread is None) == (mend != "the limit is raised")
    assert not any(name.startswith("work/") for name in out.names())
    report = out.read("report.html").decode()
    assert ("were not read, about" in report) == (mend == "the limit is raised")


def test_a_run_that_ended_at_the_limit_leaves_what_another_recipe_does_not_make(tmp_path: Path) -> None:
    path, broken = many(tmp_path, 3), tmp_path / "0.jsonl.gz"
    broken.write_bytes(broken.read_bytes()[:200])
    assert main(["run", str(path)]) == 1
    broken.unlink()
    assert main(["run", str(path), "--set", "parse.favor=recall"]) == 0
    out = Folder(str(tmp_path / "out"))
    assert not verify(out, verify_hooks(out)).problems
    (tmp_path / "fresh").mkdir()
    assert main(["run", str(path), "--set", "parse.favor=recall", "--set", f"run.output={tmp_path}/2"]) == 0
    assert fingerprint(str(tmp_path / "out")) == fingerprint(str(tmp_path / "2"))
