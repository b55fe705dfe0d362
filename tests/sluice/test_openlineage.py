"""OpenLineage events: a run, a purge and a training tell what they read and wrote, and no fault of theirs stops one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluice
from lineage.openlineage import EventDataset, JobFacts, common_folder, dataset_name, job_events
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from tests.support.checkout import ROOT
from tests.support.inputs.tiny_crawl import make_tiny_crawl
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.processes.forked import run_forked
from tests.support.training.training_runs import Run
from trainer.options import TrainRecipe
from trainer.processes.runtime import Process
from trainer.run.parts import LaunchContext
from trainer.run.train import train

FACTS = JobFacts(kind="run", name="mine", inputs=[EventDataset(url="s3://crawls/2026")])


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """The client writes more variables beside OPENLINEAGE_URL: other tests are not to see them."""
    with patch.dict(os.environ):
        yield


@pytest.fixture()
def events_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the client, configured as its users do it, appends events."""
    path = tmp_path / "events.ndjson"
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(path))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    return path


def told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tags(event: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in event["run"]["facets"]["tags"]["tags"]}


def versions(datasets: list[dict[str, Any]]) -> list[str]:
    return [each["facets"]["version"]["datasetVersion"] for each in datasets]


def test_a_run_and_a_purge_tell_what_they_read_and_wrote(tmp_path: Path, events_file: Path) -> None:
    sources = make_tiny_crawl(tmp_path)
    out = str(tmp_path / "out")
    summary = run(tmp_path, recipe(out, sources))
    begun, done = told(events_file)
    assert (begun["eventType"], done["eventType"]) == ("START", "COMPLETE")
    assert begun["run"]["runId"] == done["run"]["runId"]
    assert (done["job"]["namespace"], done["job"]["name"]) == ("sluice", "run.test")
    assert [each["namespace"] for each in done["inputs"]] == ["file"] * len(sources)
    statistics = [each["inputFacets"]["inputStatistics"] for each in done["inputs"]]
    assert sum(each["size"] for each in statistics) == summary["num_bytes"]
    assert sum(each["fileCount"] for each in statistics) == summary["num_files"]
    (written,) = done["outputs"]
    assert (written["namespace"], written["name"]) == ("file", out)
    assert versions([written]) == [summary["content_fingerprint"]]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == summary["num_kept"]

    ((doc_id,),) = query(Folder(out), "SELECT doc_id FROM placements ORDER BY ALL LIMIT 1").rows
    sluice.purge(out, docs=str(doc_id)).apply(reason="a takedown", by="the owner")
    begun, done = told(events_file)[2:]
    (purge,) = query(Folder(out), "SELECT * FROM purges").objects()
    assert done["job"]["name"] == f"purge.{out}"
    assert versions(begun["inputs"]) == [purge["content_fingerprint_before"]]
    assert versions(done["outputs"]) == [purge["content_fingerprint_after"]]
    assert tags(done)["purge_id"] == purge["purge_id"]
    assert str(doc_id) not in events_file.read_text()


def _trained(environment: dict[str, str], recipe: TrainRecipe, process: Process) -> None:
    os.environ.update(environment)
    train(recipe, LaunchContext(process=process, shows_progress=False))


def test_each_attempt_of_a_training_tells_the_content_that_it_reads(
    tmp_path: Path, events_file: Path
) -> None:
    corpus = make_corpus(str(tmp_path / "out"), {"web": [3000]})
    training = Run(data=corpus.url, output=tmp_path / "run", changes={"checkpoint": {"every": 2}})
    # The server that forks has the environment of its own start.
    configured = {name: value for name, value in os.environ.items() if name.startswith("OPENLINEAGE")}
    for steps in (4, 6):
        run_forked(tmp_path / "scratch", 1, partial(_trained, configured, training.recipe({"steps": steps})))
    events = told(events_file)
    assert [each["eventType"] for each in events] == ["START", "COMPLETE"] * 2
    assert [(tags(each)["attempt"], tags(each)["first_step"]) for each in events[::2]] == [
        ("1", "0"),
        ("2", "4"),
    ]
    assert [tags(each)["steps_done"] for each in events[1::2]] == ["4", "6"]
    ((recorded,),) = query(corpus, "SELECT DISTINCT content_fingerprint FROM training_segments").rows
    assert {version for each in events for version in versions(each["inputs"])} == {recorded}
    assert {each["outputs"][0]["name"] for each in events} == {str(tmp_path / "run")}


def test_an_error_is_told_with_its_message_and_an_interrupt_as_an_abort(events_file: Path) -> None:
    with pytest.raises(RecipeError), job_events(FACTS):
        raise RecipeError("limits.max_bad_records: 0.02 of the input could not be read")
    with pytest.raises(KeyboardInterrupt), job_events(FACTS):
        raise KeyboardInterrupt
    events = told(events_file)
    assert [each["eventType"] for each in events] == ["START", "FAIL", "START", "ABORT"]
    message = events[1]["run"]["facets"]["errorMessage"]["message"]
    assert message == "RecipeError: limits.max_bad_records: 0.02 of the input could not be read"


@pytest.fixture()
def refusing_server() -> Iterator[str]:
    """A server of events that answers each with an error."""

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(422)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_server_that_refuses_events_is_told_once_and_the_job_goes_on(
    refusing_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", refusing_server)
    with job_events(FACTS):
        done = True
    assert done
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("OpenLineage: no events are sent (START of run mine: ")
    assert "422" in line
    assert line.endswith("the job goes on")


def test_a_client_that_is_not_installed_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with job_events(FACTS):
        pass
    assert 'pip install "sluice[openlineage]"' in capsys.readouterr().err


def test_without_configuration_the_client_is_not_even_imported() -> None:
    code = (
        "import sys; from lineage.openlineage import *\n"
        "with job_events(JobFacts(kind='run', name='x', inputs=[])): pass\n"
        "sys.exit('openlineage.client' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@given(
    user=st.from_regex(r"[a-z]{3,9}", fullmatch=True), password=st.from_regex(r"[0-9]{9,12}", fullmatch=True)
)
def test_names_of_datasets_hold_no_credentials(user: str, password: str) -> None:
    for url in (f"https://{user}:{password}@example.org/a", f"s3://bucket/a?X-Amz-Signature={password}"):
        assert password not in "".join(dataset_name(url))


@pytest.mark.parametrize(
    ("urls", "folder"),
    [
        (["/data/a/1.gz", "/data/b/2.gz"], "/data"),
        (["s3://crawl/x/aa.gz", "s3://crawl/x/ab.gz"], "s3://crawl/x"),
        (["/data/one.gz"], "/data/one.gz"),
    ],
)
def test_a_source_is_named_by_the_folder_of_its_files(urls: list[str], folder: str) -> None:
    assert common_folder(urls) == folder
