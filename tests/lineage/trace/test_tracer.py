"""Trace tells the same history from every direction, and touches only the files that can hold it."""

from __future__ import annotations

import io
import json
import os
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lineage.ids import content_hash, text_hash
from lineage.storage.folder import Folder
from lineage.store import lookup, write
from lineage.store.delta import StoreError, commit_tables
from lineage.store.lookup import Lookup
from lineage.store.rows import SegmentRow
from lineage.store.shuffle import Shuffle, bucket_of
from lineage.store.write import add_documents, table_pieces, write_tables
from lineage.trace.document_history import documents_json
from lineage.trace.exposure import erased_from, fold
from lineage.trace.tracer import Functions, MoreRuns, Tracer, UnknownError
from pipeline.inspect.trace.document_history import print_history, print_list
from tests.support.outputs.lineage_query import query
from tests.support.outputs.made_store import (
    NUM,
    TOKENS,
    ArithmeticOrder,
    doc_id,
    document,
    documents_table,
    is_kept,
    make_store,
    purge,
    segment_row,
    table_of,
    train,
)

ORDER = ArithmeticOrder()
FUNCTIONS = Functions(find=ORDER.find, locate=ORDER.locate)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(str(tmp_path_factory.mktemp("store")))
    make_store(folder)
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Folder:
    folder = Folder(str(tmp_path))
    make_store(folder)
    return folder


def tracer(out: Folder, version: int | None = None) -> Tracer:
    return Tracer(out, FUNCTIONS, version=version)


def test_a_kept_document_tells_its_place_its_stages_its_edits_and_its_tokens(out: Folder) -> None:
    told = tracer(out).by_id(doc_id(1)).as_json()
    made = document(1)
    assert list(told) == [
        "doc_id",
        "url",
        "warc",
        "hashes",
        "status",
        "decisions",
        "cluster",
        "placements",
        "exposures",
        "purged",
    ]
    assert told["warc"] == {
        "file": "crawl-1.warc.gz",
        "offset": 1000,
        "length": 900,
        "record_id": "<urn:uuid:1>",
    }
    assert told["hashes"] == {
        kind: made[f"{kind}_hash"].hex()
        for kind in ("raw", "text", "clean", "tokens")  # type: ignore[attr-defined]
    }
    verdicts = [(decision["stage"], decision["rule"], decision["verdict"]) for decision in told["decisions"]]  # type: ignore[union-attr,index,call-overload]
    assert verdicts == [
        ("url", None, "keep"),
        ("parse", None, "keep"),
        ("quality", None, "keep"),
        ("pii", "email", "edit"),
        ("identity", None, "keep"),
        ("dedup.near", None, "keep"),
    ]
    assert told["placements"] == [{"source": "web", "shard": 0, "start": 0, "num_tokens": TOKENS}]
    assert told["exposures"] == [] and told["purged"] is None
    json.dumps(told, allow_nan=False)


def test_a_rejected_document_ends_with_the_rule_that_decided(out: Folder) -> None:
    told = tracer(out).by_id(doc_id(3)).as_json()
    assert told["decisions"][-1] == {  # type: ignore[index]
        "stage": "quality",
        "rule": "gopher_quality.too_few_words",
        "value": 12.0,
        "threshold": 50.0,
        "verdict": "reject",
    }
    assert [d["stage"] for d in told["decisions"]] == ["url", "parse", "quality"]  # type: ignore[union-attr,index,call-overload]
    assert told["placements"] == [] and told["cluster"]["members"] == []  # type: ignore[index,call-overload]


def test_a_duplicate_names_what_it_repeats_and_its_cluster(out: Folder) -> None:
    told = tracer(out).by_id(doc_id(10)).as_json()
    assert told["decisions"][-1]["verdict"] == "duplicate"  # type: ignore[index,call-overload]
    members = sorted(doc_id(n).hex() for n in (1, 10, 20, 40, 50))
    assert told["cluster"] == {
        "id": doc_id(1).hex(),
        "size": 5,
        "duplicate_of": doc_id(1).hex(),
        "similarity": 0.9,
        "members": members,
    }


@pytest.mark.parametrize("number", [0, 1, 7, 10, 59])
def test_every_direction_leads_to_the_same_story(out: Folder, number: int) -> None:
    made, ask = document(number), tracer(out)
    history = ask.by_id(doc_id(number))
    assert ask.by_url(f"urn:text:http://HOST{number % 4}.example:80/page/{number}#top") == [history]
    assert ask.by_place(made["warc_file"], made["warc_offset"]) == [history]  # type: ignore[arg-type]
    for kind in ("raw", "text", "clean", "tokens"):
        if made.get(f"{kind}_hash") is not None:
            assert ask.by_hash(made[f"{kind}_hash"]) == [history]  # type: ignore[arg-type]
    assert history in ask.by_host(f"host{number % 4}.example")[0]
    if made["status"] == "kept":
        first = made["start"]
        for token in (first, first + TOKENS - 1):  # type: ignore[operator]
            assert ask.by_token("web", made["shard"], token) == [history]  # type: ignore[arg-type]


def test_a_token_far_behind_the_start_of_its_document_leads_to_it(
    out: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = query(out, "SELECT doc_id, source, shard, start, num_tokens FROM placements").rows
    monkeypatch.setattr(lookup, "_REACHES", (2, 3, 1 << 62))
    ask = tracer(out)
    for known, source, shard, start, num_tokens in rows[:5]:
        for offset in range(int(str(num_tokens))):
            (history,) = ask.by_token(str(source), int(str(shard)), int(str(start)) + offset)
            assert history.doc_id.hex() == known


def test_a_host_is_listed_in_order_of_url_and_cut_with_its_count(out: Folder) -> None:
    histories, num = tracer(out).by_host("host1.example", limit=3)
    urls = sorted(f"https://host1.example/page/{n}" for n in range(NUM) if n % 4 == 1)
    assert ([history.row.url for history in histories], num) == (urls[:3], 15)
    told: Any = documents_json(histories, 3, num, tracer(out).last_of_host("host1.example"))
    cut = told["documents_cut"]
    assert (cut["count"], cut["first"]["url"], cut["last"]["url"]) == (15, urls[0], urls[-1])
    assert "documents_cut" not in documents_json(tracer(out).by_host("host1.example")[0])


def test_a_limit_cuts_every_list_of_a_history_and_adds_its_count_its_first_and_its_last(own: Folder) -> None:
    train(own, segment_row(0, 0, 9))
    history = tracer(own).by_id(doc_id(1))
    whole, cut = history.as_json(), history.as_json(1)
    for name, told, full in (
        ("decisions", cut, whole),
        ("exposures", cut, whole),
        ("members", cut["cluster"], whole["cluster"]),
    ):
        every = full[name]  # type: ignore[index,call-overload]
        assert told[name] == every[:1] and len(every) > 1, name  # type: ignore[index,call-overload]
        assert told[f"{name}_cut"] == {"count": len(every), "first": every[0], "last": every[-1]}  # type: ignore[index,call-overload]
    assert (cut["placements"], history.as_json(0)["placements"]) == (whole["placements"], [])
    assert not [name for name in whole if name.endswith("_cut")]


def test_a_limit_cuts_decisions_on_a_terminal_too(out: Folder) -> None:
    def shown(limit: int | None) -> str:
        written = io.StringIO()
        print_history(Console(file=written, width=200), "an out", tracer(out).by_id(doc_id(1)), limit)
        return written.getvalue()

    assert "quality" in shown(None) and "quality" not in shown(1)
    assert "… and 5 more" in shown(1)


def test_the_call_that_explains_is_given_with_its_output_and_id(out: Folder) -> None:
    found = tracer(out).by_id(doc_id(1))
    decisions = tuple(
        replace(decision, rule=None) for decision in found.decisions if decision.verdict == "keep"
    )
    written = io.StringIO()
    print_history(Console(file=written, width=40), "an out", replace(found, decisions=decisions))
    assert (
        f"  sluice explain 'an out' --doc {doc_id(1).hex()} measures every rule again\n" in written.getvalue()
    )


@pytest.mark.parametrize("ask", [
    lambda t: t.by_id(content_hash(b"nobody")),
    lambda t: t.by_url("https://nowhere.example/"),
    lambda t: t.by_url("no url"),
    lambda t: t.by_hash(content_hash(b"nothing")),
    lambda t: t.by_host("nowhere.example"),
    lambda t: t.by_place("crawl-0.warc.gz", 1),
    lambda t: t.by_place("x' OR '1'='1", 0),
    lambda t: t.by_token("web", 0, 10**9),
    lambda t: t.by_token("web", 7, 0),
    lambda t: t.by_token("web' OR '1'='1", 0, 0),
    lambda t: t.by_step("nobody", 0),
])  # fmt: skip
def test_what_is_not_there_is_unknown(out: Folder, ask) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnknownError):
        ask(tracer(out))


def test_the_hash_of_the_empty_text_is_not_said_to_be_unknown(out: Folder) -> None:
    with pytest.raises(
        UnknownError, match="is the hash of the empty text, by which no document is looked up"
    ):
        tracer(out).by_hash(content_hash(b""))


def test_a_folder_without_a_store_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="output folder of a finished run"):
        tracer(Folder(str(tmp_path))).by_id(doc_id(1))


def test_of_rows_with_one_id_the_first_record_is_told_and_its_repetition_counts_as_duplicate(
    tmp_path: Path,
) -> None:
    out = Folder(str(tmp_path))
    again = document(1) | {
        "status": "duplicate",
        "stage": "identity",
        "warc_file": "later.warc",
        "shard": None,
    }
    rows = [again, *(document(n) for n in range(NUM))]
    make_store(out, table_of("documents", rows))
    assert tracer(out).by_id(doc_id(1)).row.warc_file == "crawl-1.warc.gz"
    repeated = tracer(out).by_place("later.warc", 1000)[0]
    assert [decision.verdict for decision in repeated.decisions][-1] == "duplicate"


def test_a_point_question_opens_only_the_files_that_can_hold_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is taken away first: a question that opened another file would fail."""
    monkeypatch.setattr(write, "ROWS_PER_BUCKET", 4)
    out = Folder(str(tmp_path))
    make_store(out)
    number = 17
    made = document(number)
    keys = {"documents": doc_id(number), "hash_index": made["raw_hash"], "url_index": text_hash(made["host"])}  # type: ignore[arg-type]
    for name, key in keys.items():
        folder = Folder(out.at(f"lineage/{name}"))
        files = [file for file in folder.names() if file.endswith(".parquet")]
        assert len(files) > 2
        buckets = write.num_buckets(4 * NUM if name == "hash_index" else NUM)
        [bucket] = bucket_of(write.sort_keys([key]), buckets)  # type: ignore[list-item]
        for file in files:
            if not file.startswith(f"{bucket:05d}-"):
                folder.remove(file)
    assert tracer(out).by_id(doc_id(number)).doc_id == doc_id(number)
    assert [row.doc_id for row in Lookup(out).by_hashes([made["raw_hash"]])] == [doc_id(number)]  # type: ignore[arg-type]
    assert doc_id(number) in [row.doc_id for row in Lookup(out).host(made["host"])]  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="cannot be read"):
        Lookup(out).documents([doc_id(n) for n in range(NUM)])


def test_a_damaged_file_is_named_with_what_to_do(own: Folder) -> None:
    folder = Path(own.at("lineage/documents"))
    [file] = folder.glob("*.parquet")
    file.write_bytes(b"PAR1" + os.urandom(file.stat().st_size - 8) + b"PAR1")
    with pytest.raises(StoreError, match=r"documents.*sluice verify"):
        tracer(own).by_id(doc_id(1))


@pytest.mark.parametrize("kind", ["*.parquet", "_delta_log/*.json"])
def test_no_damage_to_a_table_ends_in_anything_but_an_answer_or_a_clear_error(own: Folder, kind: str) -> None:
    [file] = Path(own.at("lineage/documents")).glob(kind)
    whole, chance = file.read_bytes(), random.Random(kind)
    told = {"answer": 0, "error": 0}
    for turn in range(40):
        damaged = bytearray(whole[: chance.randrange(len(whole))] if turn % 4 == 0 else whole)
        for _ in range(chance.choice([1, 3, 50])):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        for ask in (lambda: tracer(own).by_id(doc_id(1)), lambda: query(own, "SELECT * FROM documents")):
            try:
                ask()
                told["answer"] += 1
            except StoreError:
                told["error"] += 1
    assert told["error"] > 40


def test_training_steps_lead_to_documents_and_documents_to_steps(own: Folder) -> None:
    train(own, segment_row(0, 0, 9))
    ask = tracer(own)
    told = {(e.step, e.row, e.first_token, e.num_tokens) for e in ask.by_id(doc_id(1)).exposures}
    assert told == {(0, 0, 0, 50), (0, 1, 0, 50)}
    for step in (0, 3, 9):
        for history in ask.by_step("first", step):
            assert step in {e.step for e in history.exposures}
    every = {history.doc_id for step in range(10) for history in ask.by_step("first", step)}
    assert every == {doc_id(n) for n in range(NUM) if is_kept(n) and document(n)["shard"] == 0}
    assert [history.doc_id for history in ask.by_step("first", 0, 1)] == [doc_id(1)]
    for most in (1, 2, 1000):
        some, num_rows = ask.first_of_step("first", 0, most)
        of_rows = [
            history.doc_id
            for history in ask.by_step("first", 0)
            if any(e.step == 0 and e.row < num_rows for e in history.exposures)
        ]
        assert [history.doc_id for history in some] == of_rows and num_rows <= 4
        assert len(some) >= most or num_rows == 4, "rows are asked for until they hold enough, or end"
    assert ask.first_of_step("first", 0, 1)[1] == 1, "no more rows than it takes"
    with pytest.raises(UnknownError, match=r"step 10 of run 'first' is not recorded, 0 to 9 are: .*--runs "):
        ask.by_step("first", 10)
    with pytest.raises(UnknownError, match="rows 0 to 3"):
        ask.by_step("first", 0, 4)


def test_a_step_that_no_attempt_took_is_told_from_one_that_is_not_recorded_yet(own: Folder) -> None:
    """Once a run's own facts are read there is nothing left that could tell of it."""
    train(own, segment_row(0, 0, 9))
    unset = dict.fromkeys(field.name for field in fields(SegmentRow))
    further = SegmentRow(**(unset | segment_row(0, 0, 19, fact=1)))
    facts = Tracer(own, FUNCTIONS, more=MoreRuns(segments=(further,)))
    assert facts.by_step("first", 15)
    with pytest.raises(
        UnknownError, match=r"run 'first' never took a step 20: .* tell of steps 0 to 19$"
    ) as told:
        facts.by_step("first", 20)
    assert "--runs" not in str(told.value)


def test_steps_after_a_dead_attempts_checkpoint_count_once_and_only_where_they_were_applied(
    own: Folder,
) -> None:
    train(
        own,
        segment_row(0, 0, 7, last_checkpoint=4),
        segment_row(1, 4, 5, parent_attempt=0, skipped_steps="[5]"),
    )
    ask = tracer(own)
    by_step = {}
    for number in [n for n in range(NUM) if is_kept(n)]:
        for exposure in ask.by_id(doc_id(number)).exposures:
            assert by_step.setdefault(exposure.step, (exposure.attempt, exposure.applied)) == (
                exposure.attempt,
                exposure.applied,
            )
    assert by_step == {
        0: (0, True),
        1: (0, True),
        2: (0, True),
        3: (0, True),
        4: (1, True),
        5: (1, False),
        6: (0, False),
        7: (0, False),
    }


def test_the_latest_fact_of_a_stretch_counts(own: Folder) -> None:
    train(own, segment_row(0, 0, -1, fact=0), segment_row(0, 0, 3, fact=1), segment_row(0, 0, 1, fact=2))
    assert [run.num_steps for run in tracer(own).runs()] == [2]


def train_through_two_purges(own: Folder) -> None:
    """Document 2 goes before step 20, document 1 before step 30."""
    train(
        own,
        segment_row(0, 0, 19, content_fingerprint="f0"),
        segment_row(0, 20, 29, content_fingerprint="f1", fact=0),
        segment_row(0, 30, 59, content_fingerprint="f2", fact=0),
    )
    purge(own, "p1", [2], "f0", "f1")
    purge(own, "p2", [1], "f1", "f2")


def test_a_purged_document_says_so_and_was_not_read_by_steps_after_the_purge(own: Folder) -> None:
    train_through_two_purges(own)
    told = tracer(own).by_id(doc_id(1))
    assert told.purged is not None and (told.purged.by, told.purged.role) == ("Ada", "target")
    assert {e.step for e in told.exposures} == {0, 20}
    assert {e.step for e in tracer(own).by_id(doc_id(2)).exposures} == {0}


@pytest.mark.parametrize("version", [1, 2])
def test_a_version_before_a_purge_claims_no_step_that_met_only_end_of_text(own: Folder, version: int) -> None:
    train_through_two_purges(own)
    asked = tracer(own, version)
    told, now = asked.by_id(doc_id(1)), tracer(own).by_id(doc_id(1))
    assert (told.purged, told.exposures) == (None, now.exposures)
    assert {e.step for e in told.exposures} == {0, 20}
    assert (asked.by_id(doc_id(2)).purged is None) is (version == 1)
    assert [history.doc_id for history in asked.by_step("first", 20, 0)] == [doc_id(1)]
    assert asked.by_step("first", 40, 0) == []


def test_what_a_dead_attempt_read_before_a_purge_is_told_though_the_next_one_met_nothing_there(
    own: Folder,
) -> None:
    train(
        own,
        segment_row(0, 0, 39, content_fingerprint="f0", last_checkpoint=19),
        segment_row(1, 20, 59, content_fingerprint="f1", parent_attempt=0),
    )
    before = [(e.step, e.attempt, e.applied) for e in tracer(own).by_id(doc_id(1)).exposures if e.row == 0]
    purge(own, "p1", [1], "f0", "f1")
    after = [(e.step, e.attempt, e.applied) for e in tracer(own).by_id(doc_id(1)).exposures if e.row == 0]
    assert before == [(0, 0, True), (20, 1, True), (40, 1, True)]
    assert after == [(0, 0, True), (20, 0, False)]


def test_a_version_shows_only_the_purges_before_it(own: Folder) -> None:
    purge(own, "p1", [2], "f0", "f1")
    purge(own, "p2", [1], "f1", "f2")
    seen = {
        v: [tracer(own, version=v).by_id(doc_id(n)).purged is not None for n in (1, 2)] for v in (1, 2, 3)
    }
    assert seen == {1: [False, False], 2: [False, True], 3: [True, True]}
    with pytest.raises(StoreError, match="versions 1 to 3"):
        tracer(own, version=4)


def test_contents_since_a_purge_follow_the_chain_of_purges(own: Folder) -> None:
    purge(own, "p1", [2], "f0", "f1")
    purge(own, "p2", [1], "f1", "f2")
    purge(own, "p3", [3], "f2", "f2")
    purges = {row.purge_id: row for row in Lookup(own).purges()}
    every = list(purges.values())
    assert erased_from(purges["p1"], every) == {"f1", "f2"}
    assert erased_from(purges["p2"], every) == {"f2"}
    assert erased_from(purges["p3"], every) == {
        "f2"
    }  # it took files beside the index: that content held nothing


def test_a_purge_of_files_beside_the_index_hides_no_purge_before_it(own: Folder) -> None:
    train(
        own,
        segment_row(0, 0, 19),
        *(segment_row(0, s, s + 19, content_fingerprint=f"f{s // 20}") for s in (20, 40)),
    )
    purge(own, "p1", [2], "f0", "f1")
    purge(own, "p2", [3], "f1", "f1")
    purge(own, "p3", [1], "f1", "f2")
    assert {e.step for e in tracer(own).by_id(doc_id(2)).exposures} == {0}


def test_two_purges_of_one_content_as_after_a_backup_both_count(own: Folder) -> None:
    purge(own, "p1", [2], "f0", "f1")
    purge(own, "p2", [1], "f1", "f2")
    purge(own, "p3", [3], "f1", "f3")
    purges = Lookup(own).purges()
    (first,) = (row for row in purges if row.purge_id == "p1")
    for order in (purges, purges[::-1]):
        assert erased_from(first, order) == {"f1", "f2", "f3"}


def test_a_step_lists_no_document_that_was_purged_before_it_ran(own: Folder) -> None:
    train(own, segment_row(0, 0, 19), segment_row(0, 20, 59, content_fingerprint="f1"))
    purge(own, "p1", [1], "f0", "f1")
    listed = {
        step: doc_id(1) in {h.doc_id for h in tracer(own).by_step("first", step)} for step in (0, 20, 40)
    }
    assert listed == {0: True, 20: False, 40: False}
    assert doc_id(1) not in {h.doc_id for h in tracer(own).by_step("first", 20, 0)}


def test_a_host_lists_documents_and_not_records(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    again = document(1) | {
        "status": "duplicate",
        "stage": "identity",
        "warc_file": "later.warc",
        "shard": None,
    }
    make_store(out, table_of("documents", [again, *(document(n) for n in range(NUM))]))
    urls = sorted(f"https://host1.example/page/{n}" for n in range(NUM) if n % 4 == 1)
    assert urls[0] == document(1)["url"], "the record that came twice is cut within"
    for limit in (1, 2, 3, 15, 16, 99, None):
        histories, num = tracer(out).by_host("host1.example", limit)
        assert ([history.row.url for history in histories], num) == (urls[:limit], len(urls)), limit


def test_runs_of_two_outputs_with_one_name_are_refused(own: Folder) -> None:
    train(own, segment_row(0, 0, 9))
    other = replace(tracer(own).runs()[0].plans[0], output="/elsewhere")
    with pytest.raises(StoreError, match="/elsewhere are both runs called 'first'"):
        fold([*tracer(own).runs()[0].plans, other], ())


def test_the_terminal_shows_the_story_without_obeying_what_the_web_wrote(out: Folder) -> None:
    history = tracer(out).by_id(doc_id(10))
    hostile = replace(
        history, row=replace(history.row, url="https://x.example/\x1b[31m[bold]red[/bold]\u202e")
    )
    page = io.StringIO()
    console = Console(file=page, width=200, force_terminal=True)
    print_history(console, "out", hostile)
    print_list(console, "out", [hostile] * 5, limit=2)
    text = page.getvalue()
    assert "duplicate by dedup.near: measured 0.9, threshold 0.8" in text
    assert "\\x1b[31m[bold]red[/bold]\\u202e" in text and "\x1b[31m[bold]" not in text
    assert "3 more of 5" in text


def test_documents_of_every_bucket_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "ROWS_PER_BUCKET", 4)
    out = Folder(str(tmp_path))
    with Shuffle(table_pieces({"documents": NUM, "hash_index": 4 * NUM}), buffer_bytes=2000) as shuffle:
        for start in range(0, NUM, 5):
            add_documents(shuffle, documents_table(range(start, start + 5)))
        commit_tables(out, write_tables(out, shuffle))
    assert len(Lookup(out).documents([doc_id(3), doc_id(4), content_hash(b"nobody")])) == 2
    monkeypatch.setattr(lookup, "_KEYS_AT_MOST", 3)
    found = Lookup(out).documents([doc_id(n) for n in range(NUM)])
    assert sorted(row.doc_id for row in found) == sorted(doc_id(n) for n in range(NUM))
