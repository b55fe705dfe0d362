"""Several outputs on one page, runs that have not ended, the jobs of a cluster."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer, unused_port

from lineage.index.checksums import CHECKSUMS_FILE
from lineage.storage.folder import Folder
from lineage.storage.lock import hold
from lineage.store.checked import LogSums
from pipeline.cli.main import main
from pipeline.page.app import make_app
from pipeline.page.guard import make_access
from pipeline.page.processes import Commands
from pipeline.page.views import unfinished
from pipeline.page.views.unfinished import ReadProgress, progress_of
from pipeline.results.unit_results import CleanPart, ReadResult, SpanResult, UnreadableStretch
from stages.reading.options import Border
from tests.support.processes.served_page import Visitor, served


@pytest.fixture(autouse=True)
def looks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes to look, the next look is a new one."""
    monkeypatch.setattr(unfinished, "_LONG_SECONDS", math.inf)


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
    out, so_far = begun(tmp_path / "out", 5, 2), ReadProgress()
    found = progress_of(out, so_far, 0.0)
    assert (found.name, found.num_documents, found.num_survivors, found.num_bytes) == ("big", 20, 14, 2000)
    assert (found.phases[0].num_done, found.phases[0].num) == (2, 5)
    assert found.num_unreadable == 2 and found.unreadable[0] == ("0.warc.gz", 77, "it is <b>torn</b>")
    begun(tmp_path / "out", 5, 4)
    again = progress_of(out, so_far, 0.0)
    assert (again.num_documents, again.phases[0].num_done) == (40, 4), "each unit is counted once"


def test_parts_of_a_large_file_count_as_they_are_read_and_once(tmp_path: Path) -> None:
    out, so_far = begun(tmp_path / "out", 5, 2), ReadProgress()
    whole = ReadResult.from_json(json.loads(out.read(f"work/units/{0:032x}/unit.json")))
    span = SpanResult(
        began=Border(0), ended=Border(500), end=None, by_row=False, num_documents=4, num_unreadable=1,
        num_unfolded=0, most_excess=0, unreadable=(), longest=0, extent=0,
    )  # fmt: skip
    part = replace(whole, num_documents=4, num_survivors=3, num_bytes=500, span=span)
    for number in range(2):
        name = f"work/units/{0:032x}.{number}-{number + 1}/unit.json"
        out.publish(name, json.dumps(part.to_json()).encode())
    out.remove(f"work/units/{0:032x}/unit.json")
    found = progress_of(out, so_far, 0.0)
    assert (found.num_documents, found.num_survivors, found.num_bytes) == (18, 13, 2000)
    assert (found.phases[0].num_done, found.phases[0].num) == (1, 5)
    out.publish(f"work/units/{0:032x}/unit.json", json.dumps(whole.to_json()).encode())
    found = progress_of(out, so_far, 0.0)
    assert (found.num_documents, found.num_survivors, found.num_bytes) == (20, 14, 2000)
    assert (found.num_unreadable, len(found.unreadable)) == (2, 2)
    assert (found.phases[0].num_done, found.phases[0].num) == (2, 5)


def test_what_took_long_to_find_stands_for_ten_times_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, so_far, clock = begun(tmp_path / "out", 5, 1), ReadProgress(), SimpleNamespace(now=100.0)
    names = Folder.names

    def listed(folder: Folder, name: str) -> list[str]:
        clock.now += 4.0
        return names(folder, name)

    monkeypatch.setattr(Folder, "names", listed)
    monkeypatch.setattr(unfinished, "_LONG_SECONDS", 3.0)
    monkeypatch.setattr(unfinished, "time", SimpleNamespace(monotonic=lambda: clock.now))
    assert progress_of(out, so_far, 0.0).num_documents == 10
    begun(tmp_path / "out", 5, 3)
    clock.now += 39.9
    assert progress_of(out, so_far, 0.0).num_documents == 10
    clock.now += 0.1
    assert progress_of(out, so_far, 0.0).num_documents == 30


def at(out: Folder, seconds: Sequence[float]) -> None:
    """Let the files of its units be written at these times."""
    for number, time in enumerate(seconds):
        os.utime(out.at(f"work/units/{number:032x}/unit.json"), (time, time))


def test_the_rate_of_a_run_that_goes_on_is_that_of_its_newest_call(tmp_path: Path) -> None:
    out = begun(tmp_path / "out", 100, 60)
    at(out, [float(number) for number in range(1, 11)] + [9e4 + 2 * number for number in range(50)])
    found = progress_of(out, ReadProgress(), 9e4 + 98)
    assert found.bytes_per_second == 500.0 and found.phases[0].seconds_left == 80.0
    at(out, [5.0] * 60)
    found = progress_of(out, ReadProgress(), 9e4)
    assert found.bytes_per_second is None and found.phases[0].seconds_left is None


def test_two_who_look_at_once_count_each_unit_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, so_far, both = begun(tmp_path / "out", 5, 1), ReadProgress(), threading.Barrier(2)
    read = Folder.read

    def read_together(folder: Folder, name: str) -> bytes:
        if name.endswith("unit.json"):
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
        return read(folder, name)

    monkeypatch.setattr(Folder, "read", read_together)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda now: progress_of(out, so_far, now), (0.0, 0.0)))
    assert [each.num_documents for each in found] == [10, 10]


def test_a_run_that_stopped_is_told_from_one_at_work(tmp_path: Path) -> None:
    out = begun(tmp_path / "out", 5, 3)
    at(out, [1.0, 2.0, 3.0])
    for name in out.names():
        os.utime(out.at(name), (3.0, 3.0))
    with served(out.url) as address:
        visitor = Visitor(address)
        stopped = visitor.get().text
        with hold(out, "sluice run"):
            held = visitor.get().text
        out.publish("work/units/fresh", b"")
        fresh = visitor.get().text
    assert "Stopped" in stopped and "about" not in stopped.partition("<main")[2]
    assert "At work" in held and f"({os.getpid()} on " in held
    assert "or stopped just now" in fresh
    assert "3 unreadable stretches, 0 records on which" in stopped


def test_what_waits_for_the_end_of_a_run_is_led_to_its_pages(made: str, tmp_path: Path) -> None:
    out = begun(tmp_path / "out", 5, 2)
    waits = {"HX-Request": "true", "HX-Target": "progress"}
    with served(out.url) as address:
        visitor = Visitor(address)
        assert "not ended" not in visitor.get(headers=waits).text
        shutil.copytree(made, out.url, dirs_exist_ok=True)
        for tab in ("one", "another"):
            answer = visitor.get(headers=waits)
            assert answer.headers["HX-Redirect"] == "/" + visitor.base.split("/", 3)[3], tab
            assert answer.text == ""
        assert "The corpus" in visitor.get().text


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


JOB: dict[str, Any] = {
    "id": "sluice-run-1", "status": "RUNNING", "command": "sluice run <b>", "message": "", "seconds": 3672.0,
    "started_at": "2026-01-01T00:00:00", "exit_code": None,
}  # fmt: skip


def jobs_shown(
    monkeypatch: pytest.MonkeyPatch, jobs: Sequence[dict[str, Any]], outs: Sequence[str], *places: str
) -> list[str]:
    """These places of a page of outputs, and of a cluster that has these jobs."""

    async def ask(_self: Commands, *arguments: str, seconds: float) -> Any:
        assert arguments[:3] == ("jobs", "--address", "http://head:8265")
        return {"logs": "read: 40% after 9 s\n\x1b[31m<i>\n"} if "--logs" in arguments else jobs

    monkeypatch.setattr(Commands, "ask", ask)

    async def shown() -> list[str]:
        port = unused_port()
        access = make_access(port, "x", None, None)
        app = make_app([Folder(out) for out in outs], access, cluster="http://head:8265")
        async with TestClient(TestServer(app, port=port)) as client:
            await client.get(f"/?token={access.token}")
            return [await (await client.get(f"/x/{place}")).text() for place in places]

    return asyncio.run(shown())


def test_the_jobs_of_a_cluster_are_shown_with_what_they_print(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [{**JOB, "output": f"{made}/"}, {**JOB, "id": "elsewhere", "output": "s3://b/it's"}]
    places = ("jobs", "jobs/sluice-run-1", "jobs/elsewhere", "jobs/y")
    listed, one, elsewhere, unknown = jobs_shown(monkeypatch, jobs, [made], *places)
    assert 'href="/x/jobs/sluice-run-1"' in listed and "1:01:12" in listed
    assert 'href="/x/"' in listed.partition("main")[2] and "<b>" not in listed.partition("main")[2]
    assert "read: 40% after 9 s" in one and "\\x1b[31m&lt;i&gt;" in one and "no job" in unknown
    assert "<table" not in one, "its run has ended: its pages have the rest"
    assert "sluice page &#39;s3://b/it&#39;&#34;&#39;&#34;&#39;s&#39; --address http://head:8265" in elsewhere


def test_a_job_shows_how_far_its_run_is_and_each_page_leads_to_the_jobs(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = begun(tmp_path / "half", 5, 2).url
    places = ("jobs", "jobs/sluice-run-1", "half/", "")
    for page in jobs_shown(monkeypatch, [{**JOB, "output": out}], [made, out], *places):
        assert 'href="/x/jobs"' in page.partition("<main")[0]
    listed, one, *_ = jobs_shown(monkeypatch, [{**JOB, "output": out}], [made, out], *places)
    assert made not in listed.partition("<main")[0], "the jobs are of no output"
    assert "2 of 5" in one and "it is &lt;b&gt;torn&lt;/b&gt;" in one
    assert one.count("hx-get") == 1, "one asks for all of it again"
    alone = jobs_shown(monkeypatch, [{**JOB, "output": out}], [out], "jobs/sluice-run-1", "")
    assert "2 of 5" in alone[0] and 'href="/x/jobs"' in alone[1]
    Folder(out).publish("work/plan.json", b"{torn")
    [torn] = jobs_shown(monkeypatch, [{**JOB, "output": out}], [out], "jobs/sluice-run-1")
    assert 'role="alert"' in torn and "read: 40% after 9 s" in torn, "what it printed is shown all the same"


def test_an_output_that_a_job_is_to_write_waits_for_it(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "to-come")
    job = {**JOB, "output": out}
    alone = jobs_shown(monkeypatch, [job], [out], "", "jobs", "jobs/sluice-run-1", "sql")
    assert "No run has begun here yet" in alone[0] and "RUNNING" in alone[1] and "40% after" in alone[2]
    assert alone[0].partition("<main")[2] == alone[3].partition("<main")[2]
    [several] = jobs_shown(monkeypatch, [job], [made, out], "")
    assert 'not begun: <a href="/x/jobs">' in several

    class Cluster:
        def jobs(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(output=None), SimpleNamespace(output=f"{out}/")]

    monkeypatch.setattr("pipeline.cluster.job_client.JobClient", lambda _address, _token: Cluster())
    monkeypatch.setattr("pipeline.page.serve.serve", lambda outs, *_, **__: len(outs) + 40)
    assert main(["page", made, out, "--address", "http://head:8265"]) == 42
    assert main(["page", made, f"{out}-2", "--address", "http://head:8265"]) == 1
    assert main(["page", made, out]) == 1


def test_an_output_that_lacks_a_file_is_told_and_breaks_no_page(out: str, made: str) -> None:
    (Path(out) / "recipe.toml").unlink()
    with served(out, made) as address:
        visitor = Visitor(address)
        listed, front = visitor.get(), visitor.get(f"{Path(out).name}/")
    assert listed.status_code == 200 and "cannot be read" in listed.text
    assert front.status_code == 500
    assert "recipe.toml" in front.text and "sluice verify" in front.text and 'id="main"' in front.text


@pytest.mark.parametrize(
    "place",
    ["", "search?q=web.example.org", "search?q=words:the", "search?q=https://web.example.org/page-1x"],
)
def test_a_page_reads_the_checksums_once_and_no_table_twice(
    made: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    opened: list[str] = []
    check = LogSums.check

    def noted(sums: LogSums, name: str, version: int | None = None) -> None:
        opened.append(name)
        check(sums, name, version)

    read = Folder.read

    def noted_read(folder: Folder, name: str) -> bytes:
        if name == CHECKSUMS_FILE:
            opened.append(name)
        return read(folder, name)

    monkeypatch.setattr(LogSums, "check", noted)
    monkeypatch.setattr(Folder, "read", noted_read)
    [page] = jobs_shown(monkeypatch, [], [made], place)
    assert "page-1" in page or "The corpus" in page
    # The address with the token leads to the front page, which is asked for first.
    front = opened.index(CHECKSUMS_FILE, 1)
    assert sorted(opened[front:]) == sorted(set(opened[front:]))
