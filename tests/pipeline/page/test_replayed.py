"""What the page shows of a run that was replayed without what a purge took: its undone readings, its
certificates, and what of that cannot be read."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from pipeline.inspect.trace.tracing import make_tracer, training_account
from pipeline.page.handlers.purges import _Purges
from pipeline.page.handlers.runs import _Runs
from pipeline.page.notes import Notes
from pipeline.page.processes import Commands
from pipeline.page.render import environment
from pipeline.page.site import Site
from pipeline.page.views.document import run_lines
from pipeline.page.views.plan import certificates_of, training_on_purged
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.small_out.output import make_small_out
from trainer.attempts import Attempt, begin
from trainer.evidence.certificate_file import FORMAT, as_bytes
from trainer.provenance.facts import FACTS_FILE
from trainer.recovery.rollbacks import Rollback, record_rollback

CERTIFICATE = "certificates/step-00000009.attempt-2.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """An output, a purge of one of its documents, and the run that read it in attempt 1, `num` times and
    first in `step`, and was replayed in attempt 2 from the checkpoint before."""

    out: Folder
    output: Folder
    purge_id: str
    doc_id: bytes
    num: int
    step: int
    last: int

    def site(self) -> Site:
        return Site(
            out=self.out,
            name="out",
            base="/",
            home="/",
            places=(),
            version=None,
            read_only=False,
            has_jobs=False,
            templates=environment(),
            notes=Notes(self.out),
            commands=Commands(),
        )

    def purge_page(self, query: str = "") -> str:
        request = make_mocked_request("GET", f"/purges/x{query}", match_info={"purge_id": self.purge_id})
        return text_of(asyncio.run(_Purges(self.site()).show(request)))

    def run_pages(self) -> str:
        """The page of the run, and what it read of every purge."""

        async def shown() -> str:
            pages = _Runs(self.site())
            request = make_mocked_request("GET", "/runs/x", match_info={"run": "died"})
            return text_of(await pages.show(request)) + text_of(await pages.purges(request))

        return asyncio.run(shown())


def text_of(answer: web.Response) -> str:
    assert answer.text is not None
    return answer.text


def certificate(purge_id: str, readings: int) -> bytes:
    row: dict[str, Any] = {
        "format": FORMAT,
        "at": "2026-01-02T03:04:05Z",
        "run": "died",
        "checkpoint": {"name": "step-00000009.attempt-2", "step": 9},
        "purges": [{"purge_id": purge_id, "out": "out", "readings": readings, "applied": 0}],
        "chain": [],
        "init_from": [],
        "not_covered": [],
        "inexact": [],
        "commitment": {"root": "00" * 32},
        "weights": {"digest": "", "tensors": {}},
    }
    return as_bytes(row)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    folder = tmp_path_factory.mktemp("replayed")
    template = make_small_out(str(folder / "out"))
    out, output = template.folder, Folder(str(folder / "training"))
    last = record_training(out, output.url, "died", died=True)
    record, seen = next(
        (record, account.exposures[0])
        for record in template.records
        if record.status == "kept"
        for account in [training_account(out.url, [record.doc_id])]
        if account.exposures and (account.exposures[0].first_step or 0) > 1
    )
    purge_id = str(purge(out, by_doc(record)).purge_id)
    run, segment = map(json.loads, output.read(FACTS_FILE).splitlines())
    step = seen.first_step or 0
    facts = [
        run,
        segment | {"last_step": last},
        segment
        | {
            "attempt": 2,
            "parent_attempt": 1,
            "first_step": step,
            "first_sequence": step * run["global_batch"],
            "last_step": last,
            "content_fingerprint": read_index(out).content_fingerprint,
        },
    ]
    output.publish(FACTS_FILE, "".join(json.dumps(fact) + "\n" for fact in facts).encode())
    begin(output, Attempt(number=1, first_step=0, parent=None, began_at=0.0))
    begin(output, Attempt(number=2, first_step=step, parent=1, rollback=1, began_at=0.0))
    asked = Rollback(number=1, step=step, checkpoint="step", parent=1, purges=(purge_id,))
    record_rollback(output, asked)
    output.publish(CERTIFICATE, certificate(purge_id, 7))
    # A page for people lies beside each certificate.
    output.publish(CERTIFICATE.replace(".json", ".html"), b"<!doctype html>")
    return Replayed(
        out=out,
        output=output,
        purge_id=purge_id,
        doc_id=record.doc_id,
        num=seen.num_exposures,
        step=step,
        last=seen.last_step or 0,
    )


@pytest.fixture
def replayed(made: Replayed, tmp_path: Path) -> Iterator[Replayed]:
    """The output of the run may be changed: its place, which the store has, is put in order afterwards."""
    shutil.copytree(made.output.url, tmp_path / "as made")
    yield made
    shutil.rmtree(made.output.url, ignore_errors=True)
    shutil.copytree(tmp_path / "as made", made.output.url)


def test_undone_readings_and_certificates_are_shown_of_the_purge_and_of_the_run(replayed: Replayed) -> None:
    of_purge, of_run = replayed.purge_page(), replayed.run_pages()
    undone = f"undone by the replay from checkpoint {replayed.step}"
    times = "1 time" if replayed.num == 1 else f"{replayed.num} times"
    assert f"Read {times} in attempt 1, step" in of_purge and undone in of_purge
    assert "none of its readings is in its weights" in of_purge
    assert f"{replayed.num} in attempt 1, step" in of_run and undone in of_run
    assert "which it had read 7 times" in of_purge
    for page in (of_purge, of_run):
        assert replayed.output.at(CERTIFICATE) in page
        assert "None: no run" not in page and "no certificate" not in page and "Not known:" not in page
        assert "No recorded run has read them" not in page


def test_going_back_without_a_purge_and_dying_undo_readings_too(replayed: Replayed) -> None:
    for purges, told in (((), "undone by going back to"), (None, "undone: attempt 2 went on from")):
        replayed.output.remove("rollbacks/00001.json")
        if purges is None:
            begin(replayed.output, Attempt(number=2, first_step=replayed.step, parent=1, began_at=0.0))
        else:
            back = Rollback(number=1, step=replayed.step, checkpoint="s", parent=1, purges=purges)
            record_rollback(replayed.output, back)
        assert f"{told} checkpoint {replayed.step}" in replayed.purge_page()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda _: b"{", "is no certificate, or a damaged one"),
        (lambda _: b"", "is no certificate, or a damaged one"),
        (lambda data: data.replace(FORMAT.encode(), b"sluice certificate 1"), "another release made it"),
        (lambda data: data.replace(b": 7", b": 6"), "was changed since it was written"),
        (lambda data: data.replace(b'"purges"', b'"purged"'), "purges is no list"),
    ],
)
def test_a_certificate_that_cannot_be_read_is_an_error_beside_the_others(
    change: Callable[[bytes], bytes], told: str, replayed: Replayed
) -> None:
    whole = replayed.output.read(CERTIFICATE)
    later = CERTIFICATE.replace("attempt-2", "attempt-3")
    replayed.output.publish(CERTIFICATE, change(whole))
    replayed.output.publish(later, whole)
    [run] = make_tracer(replayed.out.url).runs()
    read = certificates_of(run)
    assert [found.place for found in read.found] == [replayed.output.at(later)]
    assert read.unread[0].startswith(replayed.output.at(CERTIFICATE)) and told in read.unread[0]


def test_a_certificate_that_cannot_be_read_is_shown_and_never_none(replayed: Replayed) -> None:
    replayed.output.publish(CERTIFICATE, b"{")
    for page in (replayed.purge_page(), replayed.run_pages()):
        assert f"Not known: {replayed.output.at(CERTIFICATE)} is no certificate" in page
        assert "None: no run" not in page and "It holds no certificate" not in page


def test_the_output_of_a_run_that_is_gone_is_told_and_not_taken_for_nothing(replayed: Replayed) -> None:
    replayed.output.remove_tree("")
    of_purge = replayed.purge_page()
    assert "What died has read since its last checkpoint is unknown: " in of_purge
    assert f"Not known: {replayed.output.url} holds nothing of run died" in of_purge
    of_run = replayed.run_pages()
    assert "What it has read since its last checkpoint is unknown: " in of_run
    assert f"Not known: {replayed.output.url} holds nothing of run died" in of_run
    for page in (of_purge, of_run):
        assert (
            "No recorded run" not in page and "None: no run" not in page and "no certificate of" not in page
        )


def test_a_proof_is_whole_or_says_in_print_that_it_is_not(
    replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "undone by the replay" in replayed.purge_page() and "NOT COMPLETE" not in replayed.purge_page()
    may_end = threading.Event()

    def slow(out: Folder, purge_id: str) -> Any:
        may_end.wait(60)
        return training_on_purged(out, purge_id)

    monkeypatch.setattr("pipeline.page.handlers.purges.training_on_purged", slow)
    monkeypatch.setattr("pipeline.page.handlers.purges._TRAINING_SECONDS", 0.01)

    async def looked() -> tuple[str, str, str]:
        pages = _Purges(replayed.site())

        def asked(query: str) -> web.Request:
            match = {"purge_id": replayed.purge_id}
            return make_mocked_request("GET", f"/purges/x{query}", match_info=match)

        at_once = text_of(await pages.show(asked("")))
        assert len(pages._at_work) == 1
        printed = asyncio.create_task(pages.show(asked("?print")))
        piece = asyncio.create_task(pages.training(asked("")))
        await asyncio.sleep(0.05)
        assert not printed.done() and len(pages._at_work) == 1, "it is worked out once for all who ask"
        may_end.set()
        return at_once, text_of(await printed), text_of(await piece)

    at_once, printed, piece = asyncio.run(looked())
    assert '<p class="unfinished">NOT COMPLETE' in at_once and "?print" in at_once
    for whole in (printed, piece):
        assert "undone by the replay" in whole and "NOT COMPLETE" not in whole


def test_what_cannot_be_worked_out_is_told_in_its_place(
    replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_out: Folder, _purge_id: str) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr("pipeline.page.handlers.purges.training_on_purged", failing)
    page = replayed.purge_page()
    assert "It cannot be worked out: the disk is gone" in page and replayed.purge_id in page


def test_checkpoints_around_the_readings_of_a_document_are_named_by_step(
    replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = make_tracer(replayed.out.url, None, [replayed.output.url])
    undone = tracer.by_id(replayed.doc_id).exposures
    applied = [dataclasses.replace(undone[0], step=step, applied=True) for step in (4, 34)]
    monkeypatch.setattr("pipeline.page.views.document.known_checkpoints", lambda _: ([20, 40, 60], None))

    def told(exposures: Any) -> str:
        [line] = run_lines(tracer, exposures)
        source = environment().loader.get_source(environment(), "document.html")[0]  # type: ignore[union-attr]
        part = source[source.index('<p class="soft">{% if line.unknown') :].split("</p>")[0]
        return environment().from_string(part).render(line=line)

    assert (
        "Last checkpoint before its first reading (step 4): none kept; first checkpoint after its"
        " first reading: 20; after its last (step 34): 40." in told(applied)
    )
    assert "(step 34): 20; first checkpoint after its first reading: 40." in told(applied[1:])
    only_undone = told(undone)
    assert "None of its readings is in its weights." in only_undone and "undone by the replay" in only_undone
