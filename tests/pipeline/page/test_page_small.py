"""The lineage page of a small output that is made without Ray: as of a version, and what a plan says of training."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from aiohttp.test_utils import TestClient, TestServer, unused_port

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.inspect.tracing import make_tracer
from pipeline.page.serve import make_app
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.small_out import hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.outputs.small_out.records import Record


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    """A small output out of which a document was purged."""
    made = make_small_out(str(tmp_path_factory.mktemp("page") / "out"))
    purge(made.folder, by_doc(made.named["original"]))
    return made


@pytest.fixture(scope="module")
def then(small: SmallOut) -> Iterator[tuple[requests.Session, str]]:
    """A session with the page as of version 1, and its address."""
    command = [sys.executable, "-m", "pipeline", "lineage", small.folder.url, "--version", "1", "--serve", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        session = requests.Session()
        yield session, session.get(json.loads(server.stdout.readline())["url"], timeout=60).url
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(20)


def test_as_of_a_version_the_page_shows_what_counted_then(small: SmallOut, then: tuple[requests.Session, str]) -> None:
    session, base = then
    front = session.get(base, timeout=60).text
    assert "as of version 1" in front and "Nothing was purged." in front and "version 2" not in front
    doc_id = small.named["original"].doc_id.hex()
    for place in (f"document/{doc_id}", f"search?q={doc_id}"):
        page = session.get(base + place, timeout=60)
        assert page.ok and doc_id in page.text and "purged" not in page.text
    counted = session.get(base + "sql", params={"q": "SELECT count(*) + 7000 FROM purged"}, timeout=60).text
    assert "<td>7000</td>" in counted and f"sluice lineage {small.folder.url} --version 1 " in counted


def test_as_of_a_version_the_page_prepares_no_purge_and_says_so(
    small: SmallOut, then: tuple[requests.Session, str]
) -> None:
    session, base = then
    asked = {"kind": "doc", "value": kept(small).doc_id.hex(), "by": "me", "reason": "r"}
    for place in ("", f"document/{asked['value']}"):
        page = session.get(base + place, timeout=60).text
        assert '/search" method="get"' in page and '/purge"' not in page
    assert f"sluice lineage {small.folder.url} --serve" in session.get(base, timeout=60).text
    origin = "/".join(base.split("/")[:3])
    for answer in (
        session.get(base + "purge", params=asked, timeout=60),
        session.post(base + "purge", data=asked, headers={"Origin": origin}, timeout=60),
    ):
        assert not answer.ok and "a purge is of the corpus as it is now" in answer.text
    assert not small.folder.exists("work/purge/intent.json")


def kept(small: SmallOut) -> Record:
    return next(r for r in small.records if r.status == "kept" and r is not small.named["original"])


def test_a_version_that_the_corpus_never_had_is_refused_as_for_a_select(
    small: SmallOut, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["lineage", small.folder.url, "--version", "9"]
    code, said = main([*call, "SELECT 1"]), capsys.readouterr().err
    assert code == 1 and "versions 1 to 2" in said
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *call, "--serve"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (code, said, "")


def test_the_plan_of_a_purge_says_that_the_checkpoint_of_a_run_that_is_gone_is_unknown(
    small: SmallOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The small output has no whole recipe, which the hooks of real outputs read.
    monkeypatch.setattr("pipeline.page.serve.plan_hooks", lambda _out: hooks.plan_hooks())
    shutil.copytree(small.folder.url, tmp_path / "out")
    out, gone = Folder(str(tmp_path / "out")), str(tmp_path / "gone")
    record_training(out, gone)

    async def planned() -> str:
        port = unused_port()
        async with TestClient(TestServer(make_app(out, "token", f"127.0.0.1:{port}"), port=port)) as client:
            base = str((await client.get("/?token=token")).url)
            asked = {"kind": "doc", "value": kept(small).doc_id.hex()}
            return await (await client.get(base.partition(str(port))[2] + "purge", params=asked)).text()

    assert f"last checkpoint before: unknown: {gone} cannot be read (" in asyncio.run(planned())


def test_a_history_says_which_lists_are_cut_off(small: SmallOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.page.serve._MOST_SHOWN", 1)
    history = make_tracer(small.folder.url).by_id(small.named["original"].doc_id)
    assert history.cluster is not None

    async def shown() -> str:
        port = unused_port()
        app = make_app(small.folder, "token", f"127.0.0.1:{port}")
        async with TestClient(TestServer(app, port=port)) as client:
            answer = await client.get(f"/?token=token&to=document/{history.doc_id.hex()}")
            return await answer.text()

    page = asyncio.run(shown())
    for entries in (history.decisions, history.cluster.members):
        assert f"the first 1 of {len(entries)}<" in page
