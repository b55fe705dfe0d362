"""The file of facts has one writer that counts: a superseded attempt can neither write to it nor take lines
away."""

from __future__ import annotations

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from lineage.index.checksums import CHECKSUMS_FILE, read_checksums, seal
from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.checksum_update import cover_output
from lineage.store.delta import read_table
from tests.support.outputs.synthetic import made_up_tokens, write_output
from trainer.attempts import Attempt, FencedOutError, attempts, begin, check_fence, claim
from trainer.data.corpus import open_corpus
from trainer.options import DataTable
from trainer.order import OrderOptions, plan_order
from trainer.provenance import facts
from trainer.provenance.account import Account
from trainer.provenance.facts import (
    FACTS_FILE,
    FactLog,
    SweepFact,
    check_output,
    claim_output,
    commit,
    run_fact,
)


def fact(host: str) -> SweepFact:
    return SweepFact(
        run="r", out="/out", host=host, folder="/nvme", content_fingerprint="f", at="2026-01-01T00:00:00Z"
    )


def hosts(output: Folder) -> list[str]:
    return [json.loads(line)["host"] for line in output.read(FACTS_FILE).splitlines()]


def test_a_superseded_attempt_adds_nothing(output: Folder) -> None:
    first = FactLog(output, claim(output))
    first.add(fact("a"))
    second = FactLog(output, claim(output))
    second.add(fact("b"))
    with pytest.raises(FencedOutError, match=r"attempt 1 .* has been superseded"):
        first.add(fact("c"))
    assert hosts(output) == ["a", "b"]


def test_what_others_wrote_since_the_log_was_opened_stays(output: Folder) -> None:
    attempt = claim(output)
    logs = [FactLog(output, attempt) for _ in range(2)]
    for number, host in enumerate("abcdef"):
        logs[number % 2].add(fact(host))
    assert hosts(output) == list("abcdef")
    assert [number for number, _ in logs[1].facts()] == list(range(6))


def test_a_claim_between_the_check_and_the_writing_loses_no_line(
    output: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window of a few milliseconds: the old attempt has passed its fence when the new one begins and
    writes."""
    old = FactLog(output, claim(output))
    successors: list[threading.Thread] = []

    def write_as_successor(number: int, claimed: threading.Event) -> None:
        assert claim(output) == number
        claimed.set()
        FactLog(output, number).add(fact("new"))

    def check_then_be_superseded(folder: Folder, number: int) -> None:
        check_fence(folder, number)
        if number == 1 and not successors:
            claimed = threading.Event()
            successors.append(threading.Thread(target=write_as_successor, args=(2, claimed)))
            successors[0].start()
            assert claimed.wait(600)
            if output.is_remote:  # no lock there: it writes at once, and the old attempt's put must fail
                successors[0].join()

    monkeypatch.setattr(facts, "check_fence", check_then_be_superseded)
    if output.is_remote:
        with pytest.raises(FencedOutError):
            old.add(fact("old"))
    else:
        old.add(fact("old"))
    successors[0].join()
    assert hosts(output) == (["new"] if output.is_remote else ["old", "new"])


def test_writers_at_the_same_time_each_keep_their_lines(output: Folder) -> None:
    attempt = claim(output)

    def write(writer: int) -> None:
        log = FactLog(output, attempt)
        for number in range(5):
            log.add(fact(f"{writer}-{number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    told = hosts(output)
    assert len(told) == 20
    for writer in range(4):
        assert [host for host in told if host[0] == str(writer)] == [
            f"{writer}-{number}" for number in range(5)
        ]


def test_a_commit_of_facts_covers_them_and_lists_nothing_but_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, output = Folder(str(tmp_path / "out")), Folder(str(tmp_path / "run"))
    write_output(tmp_path / "out", {"web": [made_up_tokens(5_000)]}, store=True)
    outputs = open_corpus([DataTable(out=out.url)]).outputs
    log = FactLog(output, claim(output))
    listed: list[str] = []
    names = Folder.names
    with monkeypatch.context() as watched:
        watched.setattr(Folder, "names", lambda self, under="": listed.append(under) or names(self, under))
        for number in range(12):  # Delta writes a checkpoint of its log on the way
            log.add(dataclasses.replace(fact(f"host-{number}"), out=out.url))
            assert commit(log, outputs)
    assert set(listed) == {"lineage/training_runs", "lineage/training_segments", "lineage/cache_sweeps"}
    covered = read_checksums(out)
    assert {entry.table: entry.num_rows for entry in covered.tables}["cache_sweeps"] == 12
    assert cover_output(out, read_index(out)) == covered


def test_an_earlier_plan_is_committed_late_where_another_run_has_the_same(tmp_path: Path) -> None:
    out = Folder(str(tmp_path / "out"))
    write_output(tmp_path / "out", {"web": [made_up_tokens(5_000)]}, store=True)
    corpus = open_corpus([DataTable(out=out.url)])
    first = plan_order(corpus.lengths, OrderOptions(seed=1, seq_len=64, global_batch=2))
    edited = plan_order(corpus.lengths, OrderOptions(seed=2, seq_len=64, global_batch=2))
    for run, plans in (
        ("a", [first]),
        ("b", [first, edited]),
    ):  # b's store was down while it had its first plan
        output = Folder(str(tmp_path / run))
        log = FactLog(output, claim(output))
        log.add(*(run_fact(run, output, plan) for plan in plans))
        assert commit(log, corpus.outputs)
    rows = read_table(out, "training_runs").sort_by("fact").to_pylist()
    assert [(row["run"], row["plan"]) for row in rows if row["run"] == "b"] == [
        ("b", first.to_json()),
        ("b", edited.to_json()),
    ]


def test_an_error_of_a_commit_in_the_background_is_raised_at_the_next_checkpoint(tmp_path: Path) -> None:
    """A store that is down is not one (that is made up for); checksums of a layout that we do not know
    are."""
    out, output = Folder(str(tmp_path / "out")), Folder(str(tmp_path / "run"))
    write_output(tmp_path / "out", {"web": [made_up_tokens(5_000)]}, store=True)
    corpus = open_corpus([DataTable(out=out.url)])
    plan = plan_order(corpus.lengths, OrderOptions(seed=1, seq_len=64, global_batch=2))
    attempt = Attempt(number=claim(output), first_step=0, parent=None, began_at=0.0)
    begin(output, attempt)
    with closing(Account(output, "r", plan, attempt, corpus)) as account:
        account.start()
        good = out.read(CHECKSUMS_FILE)
        out.publish(CHECKSUMS_FILE, seal({"files_of_another_version": []}))
        account.commit(10, ())
        account._worker.submit(int).result()  # its one thread has done what was asked of it before
        out.publish(CHECKSUMS_FILE, good)
        with pytest.raises(KeyError, match="format"):
            account.commit(20, ())
        account.commit(30, ())
    assert {row["last_step"] for row in read_table(out, "training_segments").to_pylist()} == {-1, 9, 29}


def test_an_output_belongs_to_the_run_that_claimed_it_first(output: Folder) -> None:
    claim_output("first", output)
    claim_output("first", output)
    assert (claim(output), claim(output), attempts(output)) == (1, 2, ())
    for refused in (claim_output, check_output):
        with pytest.raises(
            RecipeError, match=rf"run\.name = 'other': train\.output = '{output.url}' holds the run 'first'"
        ):
            refused("other", output)


def test_of_two_runs_that_claim_an_output_at_once_one_gets_it(output: Folder) -> None:
    def claims(number: int) -> bool:
        try:
            claim_output(f"run-{number}", output)
        except RecipeError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claims, range(8))) == 1


@pytest.mark.parametrize("written", [None, 99])
def test_an_output_of_another_format_is_refused_in_one_sentence(output: Folder, written: int | None) -> None:
    begin(output, Attempt(number=1, first_step=0, parent=None, began_at=0.0))
    row = json.loads(output.read("attempts/00001.json"))
    del row["format"]
    output.publish(
        "attempts/00001.json", json.dumps(row if written is None else row | {"format": written}).encode()
    )
    with pytest.raises(RecipeError, match=rf"in format {written}, this version reads 1: train again into"):
        attempts(output)
