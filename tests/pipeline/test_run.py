"""The whole data pipeline on a small crawl with planted truth."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.demo.check import check_truth
from pipeline.demo.crawl import Truth
from pipeline.phases import record
from pipeline.units.bad_records import TooManyBadRecordsError
from tests.support.outputs import runs
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import ON_RAY, fingerprint, recipe, run

SOURCES = {"web": "web-*.warc.gz", "news": "news-*.warc.gz", "boards": "boards-*.jsonl.gz"}

pytestmark = pytest.mark.usefixtures("small_ray")


@pytest.fixture(scope="module")
def sources(demo_crawl: tuple[Path, Truth]) -> dict[str, tuple[str, ...]]:
    return {name: (str(demo_crawl[0] / pattern),) for name, pattern in SOURCES.items()}


@pytest.fixture(scope="module")
def finished(sources: dict[str, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("finished")
    out = str(folder / "out")
    run(folder, recipe(out, sources, ray=ON_RAY))
    return out


def ask(out: str, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(Folder(out), sql).rows]


def test_every_plant_of_the_demo_crawl_meets_the_end_its_truth_says(
    finished: str, demo_crawl: tuple[Path, Truth]
) -> None:
    astray = [row for row in check_truth(Folder(finished), demo_crawl[1]) if row.found != row.planted]
    assert not astray


def test_what_one_stage_lets_out_is_what_the_next_takes_in(finished: str) -> None:
    steps = ask(
        finished,
        "SELECT source, num_in, num_out, num_rejected, digest_in, digest_out, digest_rejected, stage"
        " FROM steps ORDER BY source, position",
    )
    assert {row[0] for row in steps} == set(SOURCES)
    for before, after in itertools.pairwise(steps):
        if before[0] == after[0]:
            assert (before[2], before[5]) == (after[1], after[4])
    for _, num_in, num_out, num_rejected, digest_in, digest_out, digest_rejected, _ in steps:
        assert num_in == num_out + num_rejected
        assert int(digest_in, 16) == (int(digest_out, 16) + int(digest_rejected, 16)) % 2**128


def test_digests_are_sums_of_the_ids_in_the_documents_table(finished: str) -> None:
    rows = ask(finished, "SELECT source, stage, rule, doc_id FROM documents WHERE rule IS NOT NULL")
    sums: dict[tuple[str, str, str], list[int]] = {}
    for source, stage, rule, doc_id in rows:
        entry = sums.setdefault((source, stage, rule), [0, 0])
        entry[0], entry[1] = entry[0] + 1, (entry[1] + int(doc_id, 16)) % 2**128
    told = {
        (s, t, r): [num, int(digest, 16)]
        for s, t, r, num, digest in ask(finished, "SELECT * FROM step_rules")
    }
    assert told == sums


def test_every_record_is_a_document_row_or_counted_in_inputs_or_unreadable(
    finished: str, demo_crawl: tuple[Path, Truth]
) -> None:
    documents = ask(finished, "SELECT count(*) FROM documents")[0][0]
    assert documents == demo_crawl[1].num_pages
    counted = ask(finished, "SELECT sum(num_documents), sum(num_records) FROM inputs")[0]
    assert counted == (documents, documents + 6), "six WARC files begin with a warcinfo record each"
    assert ask(finished, "SELECT count(*) FROM unreadable")[0][0] == 2


def test_shards_hold_the_tokens_that_their_placements_say(finished: str) -> None:
    from stages.tokens.tokenizer import load_tokenizer

    tokenizer, out = load_tokenizer("cl100k_base"), Folder(finished)
    texts = _texts(out)
    num = 0
    for shard in read_index(out).shards:
        import numpy as np

        tokens = np.frombuffer(out.read(shard.file), "<u4")
        for doc_id, start, length in ask(
            finished,
            "SELECT doc_id, start, num_tokens FROM placements"
            f" WHERE source = '{shard.source}' AND shard = {shard.shard}",
        ):
            placed = tokens[start : start + length]
            assert placed[-1] == tokenizer.eot_id
            assert tokenizer.decode(placed[:-1]) == texts[doc_id]
            num += 1
    assert num == ask(finished, "SELECT count(*) FROM documents WHERE status = 'kept'")[0][0]


def _texts(out: Folder) -> dict[str, str]:
    import io

    import pyarrow.parquet as pq

    found = {}
    for part in read_index(out).documents:
        for row in pq.read_table(io.BytesIO(out.read(part.file)), columns=["doc_id", "text"]).to_pylist():
            found[row["doc_id"].hex()] = row["text"]
    return found


def test_the_order_in_which_inputs_are_listed_changes_no_byte(
    finished: str, sources: dict[str, tuple[str, ...]], demo_crawl: tuple[Path, Truth], tmp_path: Path
) -> None:
    shuffled = {
        name: tuple(str(path) for path in sorted(demo_crawl[0].glob(pattern), reverse=True))
        for name, pattern in SOURCES.items()
    }
    run(
        tmp_path,
        recipe(str(tmp_path / "out"), shuffled, ray={"address": "local", "num_cpus": 1, "max_in_flight": 1}),
    )
    assert fingerprint(str(tmp_path / "out")) == fingerprint(finished)


def test_a_source_that_lies_elsewhere_gives_the_same_bytes(
    finished: str, demo_crawl: tuple[Path, Truth], tmp_path: Path
) -> None:
    shutil.copytree(demo_crawl[0], tmp_path / "moved")
    moved = {name: (str(tmp_path / "moved" / pattern),) for name, pattern in SOURCES.items()}
    run(tmp_path, recipe(str(tmp_path / "out"), moved))
    assert fingerprint(str(tmp_path / "out")) == fingerprint(finished)


def test_lineage_written_by_many_tasks_is_that_of_one_process(
    finished: str, sources: dict[str, tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "IN_PROCESS_ROWS", 100)
    out = str(tmp_path / "out")
    run(tmp_path, recipe(out, sources, ray=ON_RAY))
    phases = {phase["name"] for phase in runs.summary_of(out)["phases"]}
    assert {"shuffle facts", "write lineage"} <= phases
    assert fingerprint(out) == fingerprint(finished)
    assert sorted(name for name in Folder(out).names("lineage") if name.endswith(".parquet")) == sorted(
        name for name in Folder(finished).names("lineage") if name.endswith(".parquet")
    )


def test_running_a_finished_run_again_does_nothing(
    finished: str, sources: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(finished).rglob("*") if path.is_file()}
    assert run(tmp_path, recipe(finished, sources)) == runs.summary_of(finished)
    assert {path: path.stat().st_mtime_ns for path in Path(finished).rglob("*") if path.is_file()} == before


def test_another_recipe_for_the_same_output_is_refused_naming_what_differs(
    finished: str, sources: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=r"dedup\.threshold is 0\.9 now and was 0\.8"):
        run(tmp_path, recipe(finished, sources, dedup={"threshold": 0.9}))
    fewer = {name: patterns for name, patterns in sources.items() if name != "boards"}
    with pytest.raises(RecipeError, match=r"inputs: boards/boards-00000\.jsonl\.gz is gone"):
        run(tmp_path, recipe(finished, fewer))


def test_ray_settings_may_differ_from_call_to_call(
    finished: str, sources: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    assert run(tmp_path, recipe(finished, sources, ray=ON_RAY | {"retries": 5})) == runs.summary_of(finished)


def test_a_folder_that_holds_something_else_is_not_written_to(
    sources: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("do not lose this")
    with pytest.raises(RecipeError, match=r"not empty.*thesis\.txt"):
        run(tmp_path, recipe(str(out), sources))
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]


def test_a_missing_input_is_named_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nowhere"):
        run(tmp_path, recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "nowhere-*.warc.gz"),)}))


def test_too_many_unreadable_records_stop_the_run_with_their_places(
    tmp_path: Path, demo_crawl: tuple[Path, Truth]
) -> None:
    data = (demo_crawl[0] / "web-00000.warc.gz").read_bytes()
    members = data.split(b"\x1f\x8b\x08")[1:8]
    damaged = b"".join(b"\x1f\x8b\x08" + member[: len(member) // 2] for member in members)
    (tmp_path / "damaged.warc.gz").write_bytes(damaged)
    with pytest.raises(TooManyBadRecordsError, match=r"damaged\.warc\.gz.*first at byte"):
        run(tmp_path, recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "damaged.warc.gz"),)}))
    run(
        tmp_path,
        recipe(
            str(tmp_path / "all"),
            {"web": (str(tmp_path / "damaged.warc.gz"),)},
            limits={"max_bad_records": 1.0},
        ),
    )
    assert ask(str(tmp_path / "all"), "SELECT count(*) FROM unreadable")[0][0] >= 1


def test_a_run_from_and_to_s3_gives_the_same_bytes_as_on_disk(
    finished: str, demo_crawl: tuple[Path, Truth], tmp_path: Path
) -> None:
    with runs.s3_server("crawls"):
        remote = Folder("s3://crawls/input")
        for path in demo_crawl[0].iterdir():
            remote.publish(path.name, path.read_bytes())
        sources = {name: (f"s3://crawls/input/{pattern}",) for name, pattern in SOURCES.items()}
        run(tmp_path, recipe("s3://crawls/out", sources, ray=ON_RAY))
        assert fingerprint("s3://crawls/out") == fingerprint(finished)


def test_the_whole_ledger_tells_every_rule_of_every_document(
    sources: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    run(tmp_path, recipe(out, {"boards": sources["boards"]}, quality={"ledger": "all"}))
    spam = ask(out, "SELECT doc_id FROM documents WHERE rule = 'gopher_quality.too_many_hashes'")[0][0]
    told = dict(ask(out, f"SELECT rule, verdict FROM findings WHERE doc_id = '{spam}'"))
    assert told["gopher_quality.too_many_hashes"] == "reject"
    assert told["gopher_quality.too_few_words"] == "keep"
    assert told["gopher_repetition.duplicate_line_share"] == "keep"


def test_a_later_run_drops_what_an_earlier_one_kept_naming_its_documents(
    finished: str, sources: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    run(tmp_path, recipe(out, {"again": sources["boards"]}, dedup={"against": [finished]}))
    assert ask(out, "SELECT count(*) FROM documents WHERE status = 'kept'")[0][0] == 0
    kept = {
        row[0]
        for row in ask(finished, "SELECT doc_id FROM documents WHERE status = 'kept' AND source = 'boards'")
    }
    named = {row[0] for row in ask(out, "SELECT duplicate_of FROM documents WHERE status = 'duplicate'")}
    assert named <= kept and named


def test_the_summary_says_what_the_tables_say(finished: str) -> None:
    summary = json.loads(Folder(finished).read("run.json"))
    assert summary["num_documents"] == ask(finished, "SELECT count(*) FROM documents")[0][0]
    assert summary["num_kept"] == ask(finished, "SELECT count(*) FROM documents WHERE status = 'kept'")[0][0]
    assert summary["num_tokens"] == ask(finished, "SELECT sum(num_tokens) FROM placements")[0][0]
