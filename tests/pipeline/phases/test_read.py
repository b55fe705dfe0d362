"""Units of work and the plan that names them: no state between documents; whatever shapes a byte renames
them."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.ids import id_digest, show_digest, text_hash
from lineage.pages import compared_key
from lineage.recipe import RecipeError
from pipeline import plan as plans
from pipeline.inputs.files import Input
from pipeline.phases import read as read_module
from pipeline.phases.phase import RunState
from pipeline.phases.progress import ProgressReporter
from pipeline.phases.read import read_job, read_phase, read_unit
from pipeline.plan import InputChangedError, RunPlan, plan_run, probe
from pipeline.recipe.load import load
from pipeline.results.unit_results import ReadResult
from pipeline.same_run import check_same_run, clear_work
from stages.chain import DEFAULT_STEPS, build_chain
from stages.document import Document, Rejection
from stages.quality.options import QualityTable
from stages.reading.options import InputCounts, ReadOptions
from stages.reading.reader import read_documents
from stages.steps.catalogue import StepTables
from stages.steps.language import LanguageTable
from tests.support.inputs.make_warc import http, member, page, record
from tests.support.inputs.tiny_crawl import inputs_of, make_tiny_crawl
from tests.support.outputs.runs import recipe, write_recipe
from tests.support.stores.loopback import Handler, serving

HOSTILE = (
    b"<div>" * 5_000 + b"deep" + b"</div>" * 5_000,
    b"<html><body>" + b"\0" * 1_000 + b"<p>nul",
    "<p>żółw".encode()[:-1],
    b"<!doctype html><html lang=tlh><head><title>" + b"x" * 10_000,
    page("good") + b"<script>" + b"a" * 5_000,
    b"",
)


def documents_of(paths: Sequence[Path], limit: int) -> list[Document]:
    """The first `limit` documents of these files."""
    found: list[Document] = []
    for path in paths:
        with path.open("rb") as stream:
            for item in read_documents(stream, ReadOptions(source="web", file=path.name), InputCounts()):
                if isinstance(item, Document):
                    found.append(item)
                if len(found) == limit:
                    return found
    return found


def outcomes(
    documents: Sequence[Document], order: Sequence[int], tables: StepTables
) -> list[tuple[Any, ...]]:
    """What becomes of each document, in the order of `documents`, if one chain meets them in another
    order."""
    chain = build_chain(DEFAULT_STEPS, tables)
    found: dict[int, tuple[Any, ...]] = {}
    for place in order:
        outcome = chain(documents[place])
        if isinstance(outcome, Rejection):
            rejected = outcome.document
            found[place] = (
                text_hash(rejected.text),
                rejected.language,
                rejected.language_score,
                outcome.finding,
            )
        else:
            found[place] = (text_hash(outcome.text), outcome.language, outcome.language_score, outcome.edits)
    return [found[place] for place in range(len(documents))]


def assert_no_state_passes(documents: Sequence[Document], tables: StepTables) -> None:
    order = list(range(len(documents)))
    alone = outcomes(documents, order, tables)
    for seed in range(2):
        random.Random(seed).shuffle(order)
        again = outcomes(documents, order, tables)
        assert [place for place in range(len(documents)) if alone[place] != again[place]] == []


TABLES = StepTables(
    max_document_bytes=20_000_000,
    language=LanguageTable(keep=("en", "de", "fr", "es", "it")),
    quality=QualityTable(ledger="all"),
)


def test_no_document_depends_on_which_were_processed_before(tmp_path: Path) -> None:
    make_tiny_crawl(tmp_path)
    hostile = b"".join(member(record(http(body), f"hostile-{number}")) for number, body in enumerate(HOSTILE))
    (tmp_path / "hostile.warc.gz").write_bytes(hostile)
    paths = [tmp_path / name for name in ("web-00000.warc.gz", "hostile.warc.gz", "posts-0.jsonl")]
    assert_no_state_passes(documents_of(paths, 60), TABLES)


@pytest.mark.slow
@pytest.mark.parametrize("prefilter", [False, True])
def test_no_real_page_depends_on_which_were_processed_before(prefilter: bool, real_data: Path) -> None:
    documents = documents_of(sorted((real_data / "crawl").glob("*.warc.gz")), 300)
    assert len(documents) == 300
    language = LanguageTable(keep=("en", "de", "fr", "es", "ru"), prefilter=prefilter)
    assert_no_state_passes(documents, StepTables(max_document_bytes=20_000_000, language=language))


@pytest.fixture
def planned(tmp_path: Path) -> RunPlan:
    """The plan of a run over a tiny crawl; nothing of it is done."""
    (tmp_path / "crawl").mkdir()
    make_tiny_crawl(tmp_path / "crawl")
    return plan_run(load(tiny_recipe(tmp_path)))


def tiny_recipe(folder: Path, **tables: dict[str, Any]) -> Path:
    """The recipe of `planned`, or a change of it."""
    plain = recipe(str(folder / "out"), inputs_of(folder / "crawl"), **tables)
    return write_recipe(folder / "recipe.toml", plain)


def do_unit(plan: RunPlan, number: int = 0, *, retry: bool = False) -> tuple[ReadResult, dict[str, str]]:
    """A unit's result, and the hash of each file that it wrote."""
    job = replace(read_job(plan.recipe), key=plan.key)
    isolate = read_phase(
        RunState(plan=plan, reporter=ProgressReporter(quiet=True)), job, plan.units, lambda result: None
    ).isolate
    assert isolate is not None
    result = read_unit(isolate(job) if retry else job, plan.units[number])
    top = Path(plan.out.url)
    files = [*(top / plan.units[number].folder).glob("*.parquet"), top / result.part.file]
    return result, {
        str(path.relative_to(top)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def test_a_unit_done_again_writes_the_same_bytes_in_isolation_or_not(planned: RunPlan) -> None:
    first, files = do_unit(planned)
    for retry in (False, True):
        again, files_again = do_unit(planned, retry=retry)
        assert files_again == files
        assert replace(again, seconds={}) == replace(first, seconds={})
    assert len(files) == 6


def test_a_marker_counts_what_the_files_of_its_unit_hold(planned: RunPlan) -> None:
    for number, unit in enumerate(planned.units):
        result, _ = do_unit(planned, number)
        folder = Path(planned.out.url, unit.folder)
        rows = pq.read_table(folder / "documents.parquet").to_pylist()
        survivors = [row for row in rows if row["status"] == "kept"]
        assert result.num_documents == len(rows)
        assert result.digest == show_digest(id_digest(row["doc_id"] for row in rows))
        assert result.num_survivors == len(survivors) == pq.read_table(folder / "keys.parquet").num_rows
        assert [row["part_row"] for row in survivors] == list(range(len(survivors)))
        part = pq.read_table(Path(planned.out.url, result.part.file)).to_pylist()
        assert [row["doc_id"] for row in part] == [row["doc_id"] for row in survivors]
        assert [text_hash(row["text"]) for row in part] == [row["clean_hash"] for row in survivors]
        for stage, rule, num, digest in result.rejected:
            ids = [row["doc_id"] for row in rows if (row["stage"], row["rule"]) == (stage, rule)]
            assert (num, digest) == (len(ids), show_digest(id_digest(ids)))
        assert ReadResult.from_json(json.loads((folder / "unit.json").read_bytes())) == result


def test_documents_whose_url_names_no_page_have_no_key_to_share(tmp_path: Path) -> None:
    rows = [
        {"text": f"row {n}", "url": url} for n, url in enumerate(("N/A", "#top", "https://", "example.com/a"))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "rows.jsonl"),)})
    plain["source"][0]["steps"] = ["parse", "dedup.url"]
    plan = plan_run(load(write_recipe(tmp_path / "recipe.toml", plain)))
    do_unit(plan)
    keys = pq.read_table(Path(plan.out.url, plan.units[0].folder, "keys.parquet"))["url_key"].to_pylist()
    assert keys == [None, None, None, compared_key("https://example.com/a")]


def test_documents_have_the_host_and_domain_of_their_page(tmp_path: Path) -> None:
    urls = (
        "urn:text:https://www.example.co.uk/a",
        "www.example.co.uk/a",
        "HTTP://[::1]/",
        "urn:uuid:1",
        None,
    )
    rows = [{"text": f"row {n}", "url": url} for n, url in enumerate(urls)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "rows.jsonl"),)})
    plain["source"][0]["steps"] = ["parse", "dedup.url"]
    plan = plan_run(load(write_recipe(tmp_path / "recipe.toml", plain)))
    result, _ = do_unit(plan)
    found = pq.read_table(Path(plan.out.url, plan.units[0].folder, "documents.parquet")).to_pylist()
    of_page = ("www.example.co.uk", "example.co.uk")
    assert [(row["host"], row["domain"]) for row in found] == [
        of_page,
        of_page,
        ("::1", None),
        (None, None),
        (None, None),
    ]
    assert result.num_without_page == 2


@pytest.mark.parametrize("fragments", [False, True])
def test_fragments_are_compared_where_the_source_says_so(tmp_path: Path, fragments: bool) -> None:
    urls = ("https://x.org/t#1", "x.org/t#2", "urn:text:http://x.org/t#2", "https://x.org/t")
    rows = [{"text": f"row {n}", "url": url} for n, url in enumerate(urls)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = recipe(str(tmp_path / "out"), {"rows": (str(tmp_path / "rows.jsonl"),)})
    plain["source"][0] |= {"steps": ["parse", "dedup.url"], "fragments": fragments}
    plan = plan_run(load(write_recipe(tmp_path / "recipe.toml", plain)))
    do_unit(plan)
    keys = pq.read_table(Path(plan.out.url, plan.units[0].folder, "keys.parquet"))["url_key"].to_pylist()
    assert [keys.index(key) for key in keys] == ([0, 1, 1, 3] if fragments else [0, 0, 0, 0])


def test_a_unit_whose_input_vanished_says_so_and_leaves_nothing(planned: RunPlan) -> None:
    os.remove(planned.units[0].inputs[0].url)
    with pytest.raises(InputChangedError, match=r"is gone.*Put it back"):
        read_unit(replace(read_job(planned.recipe), key=planned.key), planned.units[0])
    assert not [path for path in Path(planned.out.url).rglob("*") if path.is_file()]


def _longer(data: bytes) -> bytes:
    return data + data


def _shorter(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _other_words(data: bytes) -> bytes:
    return data.replace(b" the ", b" THE ")


@pytest.mark.parametrize(
    "change", [_longer, _shorter, _other_words], ids=["grows", "shrinks", "keeps its length"]
)
@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_a_unit_whose_input_changes_says_so_and_publishes_nothing(
    tmp_path: Path, change: Callable[[bytes], bytes], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crawl").mkdir()
    make_tiny_crawl(tmp_path / "crawl")
    path = tmp_path / "crawl" / "posts-0.jsonl"
    path.write_bytes(path.read_bytes() * 8)
    plan = plan_run(load(tiny_recipe(tmp_path, limits={"max_document_bytes": 10**6})))
    unit = next(unit for unit in plan.units if unit.inputs[0].url == str(path))
    job = replace(read_job(plan.recipe), key=plan.key)
    if when == "before it is read":
        path.write_bytes(change(path.read_bytes()))
    else:
        monkeypatch.setenv("SLUICE_TEST_CHANGED_FILE", str(path))
        monkeypatch.setenv("SLUICE_TEST_CHANGE", change.__name__)
        changed = (f"{__name__}:change_once", *job.steps[unit.source_index])
        steps = list(job.steps)
        steps[unit.source_index] = changed
        job = replace(job, steps=tuple(steps))
    with pytest.raises(InputChangedError, match=r"posts-0\.jsonl changed after this run was planned"):
        read_unit(job, unit)
    assert not [file for file in Path(plan.out.url).rglob("*") if file.is_file()]


def test_a_unit_whose_file_is_given_up_records_all_that_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.reading.give_up._MANY", 10)
    (tmp_path / "rows.jsonl").write_bytes(b"nonsense\n" * 50)
    plain = recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "rows.jsonl"),)})
    plan = plan_run(load(write_recipe(tmp_path / "recipe.toml", plain)))
    result = read_unit(replace(read_job(plan.recipe), key=plan.key), plan.units[0])
    assert [(each.offset, each.length) for each in result.unreadable[-2:]] == [(81, 9), (90, 360)]


class HalfHandler(Handler):
    """States a file's whole size and gives the first half of its lines, as behind a proxy that breaks off."""

    data: bytes

    def answer(self) -> None:
        self.send_response(200)
        if self.sends_body:
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()
        if self.sends_body:
            self.wfile.write(self.data[: self.data.index(b"\n", len(self.data) // 2) + 1])


def test_a_unit_whose_server_gives_half_of_the_file_says_so_and_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.inputs.http_file.time.sleep", lambda seconds: None)
    data = b"".join(b'{"text": "row %d"}\n' % number for number in range(100))
    with serving(HalfHandler, data=data) as url:
        plain = recipe(str(tmp_path / "out"), {"web": (f"{url}/rows.jsonl",)})
        plan = plan_run(load(write_recipe(tmp_path / "recipe.toml", plain)))
        with pytest.raises(OSError, match=r"rows\.jsonl: reading broke off at byte \d+"):
            read_unit(replace(read_job(plan.recipe), key=plan.key), plan.units[0])
    assert not [file for file in Path(plan.out.url).rglob("*") if file.is_file()]


def change_once(document: Document) -> Document:
    """A step that changes the file that is being read, on the first document."""
    if change := os.environ.pop("SLUICE_TEST_CHANGE", ""):
        path = Path(os.environ["SLUICE_TEST_CHANGED_FILE"])
        path.write_bytes(globals()[change](path.read_bytes()))
    return document


CHANGES: dict[str, dict[str, Any]] = {
    "a threshold": {"dedup": {"threshold": 0.9}},
    "a step's option": {"parse": {"favor": "recall"}},
    "the seed": {"run": {"seed": 1}},
    "a limit": {"limits": {"max_document_bytes": 10**6}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_recipe_names_its_units_anew(
    change: dict[str, Any], planned: RunPlan, tmp_path: Path
) -> None:
    other = plan_run(load(tiny_recipe(tmp_path, **change)))
    assert not {unit.key for unit in planned.units} & {unit.key for unit in other.units}


@pytest.mark.parametrize(
    "change",
    [
        {"ray": {"num_cpus": 7, "retries": 0}},
        {"run": {"name": "renamed"}},
        {"limits": {"max_bad_records": 0.5}},
    ],
)
def test_where_a_run_runs_and_what_it_is_called_shape_nothing(
    change: dict[str, Any], planned: RunPlan, tmp_path: Path
) -> None:
    other = plan_run(load(tiny_recipe(tmp_path, **change)))
    assert [unit.key for unit in other.units] == [unit.key for unit in planned.units]


def test_a_changed_input_renames_its_unit_alone(planned: RunPlan, tmp_path: Path) -> None:
    changed = tmp_path / "crawl" / "posts-1.jsonl"
    changed.write_bytes(changed.read_bytes().replace(b"Too few words.", b"Two few words."))
    other = plan_run(load(tiny_recipe(tmp_path)))
    differing = [
        ours.inputs[0].name
        for ours, theirs in zip(planned.units, other.units, strict=True)
        if ours.key != theirs.key
    ]
    assert differing == ["posts-1.jsonl"]


def read_first_unit(recipe: Path) -> None:
    """What a run leaves that was killed behind its first input file."""
    plan = plan_run(load(recipe))
    read_unit(replace(read_job(plan.recipe), key=plan.key), plan.units[0])


def refused(folder: Path) -> str:
    with pytest.raises(RecipeError) as error:
        check_same_run(plan_run(load(tiny_recipe(folder))))
    return str(error.value)


def test_every_difference_to_the_run_that_was_begun_is_named(planned: RunPlan, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("bad.example\n")
    path = tiny_recipe(tmp_path, url={"block_hosts": [str(hosts)]})
    assert not check_same_run(plan_run(load(path)))
    assert not check_same_run(plan_run(load(path))), "the same call again continues"
    read_first_unit(path)
    hosts.write_text("worse.example\n")
    crawl = tmp_path / "crawl"
    (crawl / "posts-9.jsonl").write_text('{"text": "new"}\n')
    os.remove(crawl / "web-00001.warc.gz")
    with (crawl / "posts-0.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(RecipeError) as error:
        check_same_run(plan_run(load(path, ["dedup.rows=4", "tokenize.group_files=2"])))
    said = str(error.value)
    for difference in (
        "dedup.rows is 4 now and was 8",
        "tokenize.group_files is 2 now and was 1000",
        "inputs: posts/posts-9.jsonl is new",
        "inputs: web/web-00001.warc.gz is gone",
        "inputs: posts/posts-0.jsonl has changed",
        f"files: {hosts} has changed",
        "holds a run that has read 1 of its ",
        "name another run.output",
    ):
        assert difference in said


def test_other_versions_may_not_continue_a_run(
    planned: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_same_run(planned)
    read_first_unit(tiny_recipe(tmp_path))
    monkeypatch.setattr(plans, "versions", lambda: {**planned.identity["versions"], "lxml": "99.0"})
    assert "versions: lxml has changed" in refused(tmp_path)


def test_many_differences_are_cut(planned: RunPlan, tmp_path: Path) -> None:
    check_same_run(planned)
    read_first_unit(tiny_recipe(tmp_path))
    for number in range(40):
        (tmp_path / "crawl" / f"posts-new-{number}.jsonl").write_text('{"text": "new"}')
    said = refused(tmp_path)
    assert said.count("is new") == 20
    assert "and 20 more" in said


def test_a_small_file_is_hashed_whole_and_a_large_one_in_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"

    def hash_of(data: bytes) -> str:
        path.write_bytes(data)
        return probe(Input(source="web", index=0, name="a", url=str(path), size=len(data)))

    content = random.Random(0).randbytes(1_000_000)
    assert hash_of(content) != hash_of(content[:500_000] + b"x" + content[500_001:])
    monkeypatch.setattr(plans, "_WHOLE_HASH_BYTES", 100_000)
    monkeypatch.setattr(plans, "_PROBE_BYTES", 1_000)
    whole = hash_of(content)
    for at in (0, 66_600, 999_999):
        assert hash_of(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]) != whole, at
    assert hash_of(content) == whole


def test_clearing_a_run_leaves_nothing_of_its_work_and_all_else(planned: RunPlan) -> None:
    check_same_run(planned)
    planned.out.publish("work/units/a/unit.json", b"{}")
    planned.out.publish("shards/web/00000.bin", b"")
    clear_work(planned.out)
    assert planned.out.names() == ["shards/web/00000.bin"]
    assert not Path(planned.out.url, "work").exists()
    clear_work(planned.out)


def test_a_unit_tells_which_share_of_its_file_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(read_module, "_BATCH_DOCUMENTS", 1)
    monkeypatch.setattr(read_module.UnitProgress, "tell", lambda self, share: told.append(share))
    lines = [json.dumps({"text": f"{number} " * 4_000}) for number in range(300)]
    (tmp_path / "web.jsonl").write_text("\n".join(lines))
    plain = recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "web.jsonl"),)})
    loaded = load(write_recipe(tmp_path / "recipe.toml", plain))
    plan = plan_run(loaded)
    (unit,) = plan.units
    read_unit(replace(read_job(loaded), key=plan.key), unit)
    assert len(told) == 300
    assert told == sorted(told)
    assert 0 < told[0] < 0.5 < told[-1] <= 1
