"""Several outputs on one page, runs that have not ended, the jobs of a cluster."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer, unused_port

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.page.app import make_app
from pipeline.page.guard import make_access
from pipeline.page.processes import Commands
from pipeline.page.views.unfinished import ReadSoFar, progress_of
from pipeline.results.unit_results import CleanPart, ReadResult, UnreadableStretch
from tests.support.processes.served_page import Visitor, served


def begun(folder: Path, num_files: int, num_read: int) -> Folder:
    """An output whose run has read some of its files: of each 10 documents, of which 7 passed, and a bad
    stretch."""
    out = Folder(str(folder))
    plan = {
        "inputs": {f"web/{number}.warc.gz": {} for number in range(num_files)},
        "recipe": {"run": {"name": "big"}},
    }
    out.publish("work/plan.json", json.dumps(plan).encode())
    for number in range(num_read):
        read = ReadResult(
            key=f"{number:032x}",
            source="web",
            file=f"{number}.warc.gz",
            url=f"/crawl/{number}.warc.gz",
            num_bytes=1000,
            num_records=20,
            by_type={},
            by_mime={},
            by_status={},
            unreadable=(UnreadableStretch(offset=77, length=5, error="it is <b>torn</b>"),),
            num_documents=10,
            digest="0" * 32,
            rejected=(),
            num_survivors=7,
            num_chars=700,
            html_bytes=9000,
            faults=(),
            seconds={},
            part=CleanPart(file="x", num_rows=7, hash="0" * 32),
        )
        out.publish(f"work/units/{number:032x}/unit.json", json.dumps(read.to_json()).encode())
    return out


def test_a_run_at_work_shows_its_phases_and_its_bad_records(tmp_path: Path) -> None:
    out, so_far = begun(tmp_path / "out", 5, 2), ReadSoFar()
    found = progress_of(out, so_far, 0.0)
    assert (found.name, found.num_documents, found.num_survivors, found.num_bytes) == ("big", 20, 14, 2000)
    assert (found.phases[0].num_done, found.phases[0].num) == (2, 5)
    assert found.num_unreadable == 2 and found.unreadable[0] == ("0.warc.gz", 77, "it is <b>torn</b>")
    begun(tmp_path / "out", 5, 4)
    again = progress_of(out, so_far, 0.0)
    assert (again.num_documents, again.phases[0].num_done) == (40, 4), "each unit is counted once"


def test_several_outputs_are_listed_and_each_has_its_pages(made: str, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "other" / "out")
    with served(made, str(tmp_path / "other" / "out"), str(begun(tmp_path / "half", 5, 2).url)) as address:
        visitor = Visitor(address)
        front = visitor.get()
        assert front.text.count('<td><a href="') == 3 and "2 of 5 files read, 20 documents" in front.text
        assert "Training run seen read out and out-2." in front.text, "what they share"
        for name in ("out/", "out-2/"):
            assert "The corpus" in visitor.get(name).text
        half = visitor.get("half/sql")
        assert "Run big has not ended" in half.text and "it is &lt;b&gt;torn&lt;/b&gt;" in half.text
        (tmp_path / "half" / "work").rename(tmp_path / "gone")
        assert visitor.get("half/").status_code == 404
        shutil.copytree(made, tmp_path / "half", dirs_exist_ok=True)
        assert "The corpus" in visitor.get("half/").text, "a run that ends gets its pages"


def test_what_holds_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", str(tmp_path)]) == 1
    assert "index.json" in capsys.readouterr().err
    assert main(["page", str(tmp_path), "--address", "nowhere"]) in (1, 2)


def test_the_jobs_of_a_cluster_are_shown_with_what_they_print(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {
        "id": "sluice-run-1",
        "status": "RUNNING",
        "command": "sluice run <b>",
        "message": "",
        "seconds": 12.0,
    }
    job |= {"started_at": "2026-01-01T00:00:00", "output": made, "exit_code": None}

    async def ask(_self: Commands, *arguments: str, seconds: float) -> Any:
        assert arguments[:3] == ("jobs", "--address", "http://head:8265")
        return {"logs": "read: 40% after 9 s\n\x1b[31m<i>\n"} if "--logs" in arguments else [job]

    monkeypatch.setattr(Commands, "ask", ask)

    async def shown() -> list[str]:
        port = unused_port()
        access = make_access(port, "x", None, None)
        app = make_app([Folder(made)], access, cluster="http://head:8265")
        async with TestClient(TestServer(app, port=port)) as client:
            await client.get(f"/?token={access.token}")
            return [
                await (await client.get(f"/x/{place}")).text()
                for place in ("jobs", "jobs/sluice-run-1", "jobs/y")
            ]

    listed, one, unknown = asyncio.run(shown())
    assert (
        'href="/x/jobs/sluice-run-1"' in listed
        and 'href="/x/"' in listed
        and "<b>" not in listed.partition("main")[2]
    )
    assert "read: 40% after 9 s" in one and "\\x1b[31m&lt;i&gt;" in one and "no job" in unknown


def test_an_output_that_lacks_a_file_is_told_and_breaks_no_page(out: str, made: str) -> None:
    (Path(out) / "recipe.toml").unlink()
    with served(out, made) as address:
        visitor = Visitor(address)
        listed, front = visitor.get(), visitor.get(f"{Path(out).name}/")
    assert listed.status_code == 200 and "cannot be read" in listed.text
    assert front.status_code == 500
    assert "recipe.toml" in front.text and "sluice verify" in front.text and 'id="main"' in front.text
