"""A run with [dedup.inside] publishes texts without their repeats, and everything that reads it knows of the cuts."""

from __future__ import annotations

import json
import random
import shlex
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.dedup.exchange import Exchange, InProcess
from pipeline.dedup.inside import apply, process
from pipeline.inspect.hooks import verify_hooks
from pipeline.results.dedup_result import DedupCounts
from pipeline.results.unit_results import ShortenedResult
from tests.pipeline.dedup.inside.test_look_inside import METHODS, prose
from tests.support.outputs import runs
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import fingerprint
from tests.support.processes.killed_runs import DEADLINE, Moment, command, end_sessions, wait_for

INSIDE = {"method": "substring", "min_bytes": 64, "min_chars": 80}


def write_pages(folder: Path, num_files: int = 2) -> dict[str, str]:
    """Pages of some files, by URL: most hold a passage that others hold too, some nothing else, some stand twice."""
    chosen = random.Random(11)
    shared = [prose(chosen, 25) for _ in range(4)]
    pages = {}
    for number in range(40):
        own = prose(chosen, 60)
        parts = [own, chosen.choice(shared), prose(chosen, 30)] if number % 8 else [chosen.choice(shared)] * 2
        if number % 8 == 5:
            parts += [chosen.choice(shared), prose(chosen, 30)]
        pages[f"https://example.org/{number}"] = "\n".join(parts)
        if number % 11 == 3:
            pages[f"https://example.org/copy-{number}"] = "\n".join(parts)
    folder.mkdir()
    for file in range(num_files):
        lines = [
            json.dumps({"url": url, "text": text})
            for n, (url, text) in enumerate(pages.items())
            if n % num_files == file
        ]
        (folder / f"{file}.jsonl").write_text("\n".join(lines))
    return pages


def recipe(out: Path, folder: Path, inside: dict[str, Any], **tables: dict[str, Any]) -> dict[str, Any]:
    plain = runs.recipe(str(out), {"web": (str(folder / "*.jsonl"),)}, dedup={"inside": inside}, **tables)
    plain["source"][0]["steps"] = ["url", "parse", "pii", "dedup.url", "dedup.exact", "dedup.near"]
    del plain["language"]
    return plain


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pages`, and outputs of them: `plain` and `cut`."""
    folder = tmp_path_factory.mktemp("inside")
    write_pages(folder / "pages")
    for name, inside in (("plain", {}), ("cut", INSIDE)):
        runs.run(
            folder / f"of-{name}", recipe(folder / name, folder / "pages", inside, run={"keep_text": True})
        )
    return folder


def rows(out: Path, sql: str) -> list[dict[str, Any]]:
    found = query(Folder(str(out)), sql)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def documents(out: Path) -> dict[str, dict[str, Any]]:
    return {row["url"]: row for row in rows(out, "SELECT * FROM documents")}


def test_the_output_holds_and_its_numbers_are_those_of_the_texts_that_are_left(made: Path) -> None:
    before, after = documents(made / "plain"), documents(made / "cut")
    assert not verify(Folder(str(made / "cut")), verify_hooks(Folder(str(made / "cut")))).problems
    cut = {
        row["doc_id"]: row
        for row in rows(made / "cut", "SELECT doc_id, sum(count) gone FROM edits GROUP BY 1")
    }
    assert len(cut) > 10
    for url, row in after.items():
        if row["doc_id"] in cut:
            assert row["num_chars"] == before[url]["num_chars"] - cut[row["doc_id"]]["gone"]
            assert row["clean_hash"] != before[url]["clean_hash"]
            assert row["num_tokens"] < before[url]["num_tokens"]
        else:
            assert row["clean_hash"] == before[url]["clean_hash"]
    rejected = [row for row in after.values() if row["status"] == "rejected"]
    assert {row["rule"] for row in rejected} == {"dedup.inside.min_chars"}
    assert all(row["stage"] == "dedup.inside" and row["value"] < row["threshold"] == 80 for row in rejected)
    summary = runs.summary_of(str(made / "cut"))
    assert summary["inside"]["num_documents"] == len(cut)
    assert (
        summary["inside"]["num_rejected"]
        == len(rejected)
        == summary["rejected"]["dedup.inside"]["dedup.inside.min_chars"]
    )
    (step,) = rows(made / "cut", "SELECT * FROM steps WHERE stage = 'dedup.inside'")
    assert (step["num_rejected"], step["num_out"]) == (len(rejected), summary["num_kept"])


@pytest.mark.parametrize(("method", "repeated"), [("substring", "." * 200), ("line", "\nthe same line" * 9)])
def test_cuts_that_are_alike_are_rows_of_their_own(method: str, repeated: str, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    text = f"{prose(random.Random(1), 40)}{repeated}\n{prose(random.Random(2), 40)}"
    (tmp_path / "pages/0.jsonl").write_text(json.dumps({"url": "https://example.org/", "text": text}))
    out = tmp_path / "out"
    runs.run(tmp_path / "of", recipe(out, tmp_path / "pages", inside_by(method)))
    sql = "SELECT count(*) num_cuts, sum(count) num_chars FROM edits WHERE stage = 'dedup.inside'"
    (found,) = rows(out, sql)
    (left,) = published_texts(out).values()
    assert found["num_chars"] == len(text) - len(left) > 90
    assert found.items() <= runs.summary_of(str(out))["inside"].items()
    assert not verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems


def test_without_it_nothing_is_there_of_it(made: Path) -> None:
    assert "twin" not in query(Folder(str(made / "plain")), "SELECT * FROM edits").columns
    assert not rows(made / "plain", "SELECT * FROM steps WHERE stage = 'dedup.inside'")
    assert "inside" not in runs.summary_of(str(made / "plain"))


def test_trace_names_the_document_in_which_a_cut_stays(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = rows(made / "cut", "SELECT * FROM edits WHERE twin IS NOT NULL ORDER BY doc_id, start")[0]
    assert main(["trace", str(made / "cut"), "--doc", row["doc_id"], "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    edit = next(one for one in decisions if one["stage"] == "dedup.inside")
    assert (edit["verdict"], edit["rule"], edit["value"]) == ("edit", "substring", row["count"])
    assert edit["matched"] == f"{row['twin']}:{row['twin_start']}"


def test_trace_and_explain_show_the_cuts_of_a_document_from_its_beginning_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pages").mkdir()
    long, short = (prose(random.Random(seed), num) for seed, num in ((1, 60), (2, 30)))
    with (tmp_path / "pages/0.jsonl").open("w") as file:
        for host in ("first", "second"):
            parts = (long, prose(random.Random(host), 40), short, prose(random.Random(host + "2"), 40))
            file.write(json.dumps({"url": f"https://{host}.example/", "text": "\n".join(parts)}) + "\n")
    out = tmp_path / "out"
    runs.run(tmp_path / "of", recipe(out, tmp_path / "pages", INSIDE))
    in_order = "SELECT doc_id, list(count ORDER BY start) counts FROM edits WHERE twin IS NOT NULL GROUP BY 1"
    (row,) = rows(out, in_order)
    assert len(row["counts"]) == 2 and row["counts"][0] > row["counts"][1]
    step = explained(out, row["doc_id"], capsys)["steps"][-1]
    assert [edit["count"] for edit in step["edits"]] == row["counts"]
    assert main(["trace", str(out), "--doc", row["doc_id"], "--json"]) == 0
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    assert [one["value"] for one in decisions if one["stage"] == "dedup.inside"] == row["counts"]


def test_explain_shows_what_was_cut_as_the_last_step(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = made / "cut"
    before, after = published_texts(made / "plain"), published_texts(out)
    cut = rows(
        out, "SELECT doc_id, list(count ORDER BY start) counts FROM edits WHERE twin IS NOT NULL GROUP BY 1"
    )
    cut.sort(key=lambda row: -len(row["counts"]))
    assert len(cut[2]["counts"]) > 1
    for row in cut[:5]:
        found = explained(out, row["doc_id"], capsys)
        step = found["steps"][-1]
        assert (step["stage"], step["verdict"]) == ("dedup.inside", "changed")
        assert found["text"] == step["text"] == after[row["doc_id"]]
        assert step["num_chars_in"] == len(before[row["doc_id"]])
        assert sorted(edit["count"] for edit in step["edits"]) == sorted(row["counts"])
        assert found["recorded"]["agrees"]
        assert all(one["stays_in"].partition(":")[0] in after for one in found["recorded"]["cuts"])
    assert main(["explain", str(out), "--doc", cut[0]["doc_id"]]) == 0
    said = capsys.readouterr().out
    assert f"cut (substring): {max(cut[0]['counts']):,} characters, which stay in " in said
    assert "decide otherwise" not in said


def test_explain_shows_a_document_that_kept_too_little_as_the_run_decided(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row, *_) = rows(made / "cut", "SELECT * FROM documents WHERE stage = 'dedup.inside'")
    found = explained(made / "cut", row["doc_id"], capsys)
    assert (found["status"], found["verdict"]["rule"]) == ("rejected", "dedup.inside.min_chars")
    assert found["recorded"]["agrees"]


def explained(out: Path, doc_id: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["explain", str(out), "--doc", doc_id, "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def published_texts(out: Path) -> dict[str, str]:
    """Of documents that are kept, by id."""
    tables = [pq.read_table(path, columns=["doc_id", "text"]) for path in out.glob("documents/*/*.parquet")]
    texts = {row["doc_id"].hex(): row["text"] for table in tables for row in table.to_pylist()}
    return {
        row["doc_id"]: texts[row["doc_id"]]
        for row in rows(out, "SELECT * FROM documents WHERE status = 'kept'")
    }


def test_tune_counts_the_cuts_whose_text_stays_in_a_document_that_is_lost(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    passing = {"min_words": 1, "min_word_length": 0, "min_alphabetic_words": 0, "min_stop_words": 0}
    quality = {"rules": ["gopher_quality"], "ledger": "all", **passing}
    plain = recipe(out, made / "pages", INSIDE, quality=quality)
    plain["source"][0] |= {"steps": ["parse", "quality", "dedup.exact"], "language": "en"}
    runs.run(tmp_path / "of", plain)
    words = rows(out, "SELECT doc_id, value FROM findings WHERE rule = 'gopher_quality.too_many_words'")
    longest = sorted(row["value"] for row in words)[len(words) // 2]
    call = ["tune", "--from", str(out), "--set", f"quality.max_words={int(longest)}"]
    assert main([*call, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    lost = {row["doc_id"] for row in words if row["value"] > int(longest)}
    relying = [
        row for row in rows(out, "SELECT * FROM edits WHERE stage = 'dedup.inside'")
        if row["twin"] in lost and row["doc_id"] not in lost
    ]  # fmt: skip
    assert found["total"]["lost"] == len(lost) and relying
    assert found["num_relying"] == len({row["doc_id"] for row in relying})
    assert found["num_relying_chars"] == sum(row["count"] for row in relying)
    # A document that kept too little had passed all that is judged again.
    assert found["total"]["before"] == len(documents(out)) and not found["total"]["open"]
    assert main(call) == 0
    assert f"{found['num_relying']} documents of the others had text cut" in capsys.readouterr().out


def test_a_run_from_parsed_texts_cuts_the_same(made: Path, tmp_path: Path) -> None:
    again = recipe(tmp_path / "again", made / "pages", INSIDE)
    runs.run(tmp_path / "of-again", again, from_output=str(made / "cut"))
    whole, there = fingerprint(str(made / "cut")), fingerprint(str(tmp_path / "again"))
    differing = {name for name in whole.keys() | there.keys() if whole.get(name) != there.get(name)}
    assert differing <= {"lineage/reused_steps"}


def test_a_purge_says_which_texts_relied_on_what_goes(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    runs.run(tmp_path / "of", recipe(out, made / "pages", INSIDE))
    sql = (
        "SELECT twin, count(DISTINCT doc_id) num FROM edits WHERE twin <> doc_id GROUP BY 1 ORDER BY num DESC"
    )
    row = rows(out, sql)[0]
    call = ["purge", str(out), "--doc", row["twin"], "--reason", "asked", "--by", "test"]
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_relying"] == row["num"]
    assert main([*call, "--apply"]) == 0
    assert (
        f"{row['num']} document" in (said := capsys.readouterr().out) and "does not come back in OUT" in said
    )
    assert "run its recipe from its inputs" in said
    assert not verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems


def test_after_a_purge_the_next_copy_stays_in_a_run_from_the_texts(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    runs.run(tmp_path / "of", recipe(out, made / "pages", INSIDE, run={"keep_text": True}))
    texts = published_texts(made / "plain")
    sql = "SELECT twin, doc_id, count FROM edits WHERE twin <> doc_id ORDER BY count DESC, doc_id LIMIT 1"
    (row,) = rows(out, sql)
    before = published_texts(out)
    (place,) = rows(out, f"SELECT twin_start FROM edits WHERE doc_id = '{row['doc_id']}' AND twin = '{row['twin']}'"
                    f" AND count = {row['count']}")  # fmt: skip
    passage = before[row["twin"]][place["twin_start"] :][: row["count"]]
    holding = {doc_id for doc_id in before if passage in texts[doc_id]} - {row["twin"]}
    assert len(holding) > 1 and not any(passage in before[doc_id] for doc_id in holding)
    purge = ["purge", str(out), "--doc", row["twin"], "--reason", "asked", "--by", "test", "--apply"]
    assert main(purge) == 0
    said = capsys.readouterr().out
    call = next(line for line in said.splitlines() if line.strip().startswith("sluice run "))
    again = tmp_path / "again"
    assert main([word.replace("NEW", str(again)) for word in shlex.split(call)[1:]]) == 0
    after = published_texts(again)
    (kept,) = (doc_id for doc_id, text in after.items() if passage in text)
    assert kept in holding
    assert any(cut["twin"] == kept for cut in rows(again, "SELECT * FROM edits WHERE twin IS NOT NULL"))
    assert not verify(Folder(str(again)), verify_hooks(Folder(str(again)))).problems


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ({"method": "suffix"}, "dedup.inside.method"),
        ({"method": "substring", "min_bytes": 3}, "dedup.inside.min_bytes"),
        ({"method": "line", "share": 0}, "dedup.inside.share"),
        ({"methods": "line"}, "dedup.inside.methods"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    inside: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = runs.write_recipe(tmp_path / "r.toml", recipe(tmp_path / "out", tmp_path, inside))
    assert main(["run", str(path)]) == 2
    assert said in capsys.readouterr().err


NUM_FILES = 6
ENGINES: dict[str, dict[str, dict[str, Any]]] = {
    "one process": {},
    "1 worker": {"ray": {**runs.ON_RAY, "num_cpus": 1}, "dedup": {"engine": "ray_data"}},
    "4 workers": {"ray": {**runs.ON_RAY, "num_cpus": 4}, "dedup": {"engine": "ray_data"}},
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]]]:
    """A folder with `pages` of several files, and the fingerprint of a run over them by each method."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_pages(folder / "pages", NUM_FILES)
    found = {}
    for method in METHODS:
        runs.run(folder / f"of-{method}", recipe(folder / method, folder / "pages", inside_by(method)))
        found[method] = fingerprint(str(folder / method))
    return folder, found


def inside_by(method: str) -> dict[str, Any]:
    return INSIDE | {"method": method, "ngram": 5, "min_ngram": 3}


def called_to_its_end(path: Path) -> None:
    """`sluice run` in a process of its own, whose Ray ends with it."""
    with command(path) as driver:
        assert driver.wait(DEADLINE) == 0, (path.parent / "log.txt").read_text()
    end_sessions(driver.pid)


@pytest.mark.slow
@pytest.mark.parametrize("engine", list(ENGINES)[1:])
@pytest.mark.parametrize("method", METHODS)
def test_workers_of_any_number_write_the_bytes_of_one_process(
    method: str, engine: str, undisturbed: tuple[Path, dict[str, dict[str, str]]], tmp_path: Path
) -> None:
    folder, expected = undisturbed
    plain = recipe_by(ENGINES[engine], tmp_path / "out", folder / "pages", method)
    called_to_its_end(runs.write_recipe(tmp_path / "recipe.toml", plain))
    assert fingerprint(str(tmp_path / "out")) == expected[method]


def recipe_by(engine: dict[str, dict[str, Any]], out: Path, pages: Path, method: str) -> dict[str, Any]:
    """Of any engine, tables of its own beside [dedup.inside]."""
    plain = recipe(out, pages, inside_by(method), **({"ray": engine["ray"]} if "ray" in engine else {}))
    plain["dedup"] |= engine.get("dedup", {})
    return plain


FOUND = "work/dedup/inside"
MOMENTS: dict[str, list[Moment]] = {
    "one process": [
        Moment(f"{FOUND}/pieces/*.json", 1),
        *(Moment(f"{FOUND}/*/done.json", number) for number in (1, 2, 4, 6, 8, 9)),
        Moment(f"{FOUND}/found/*.parquet", 2),
        *(Moment("documents/*/*.parquet", number) for number in (1, 3)),
        *(Moment("work/units/*/shortened.parquet", number) for number in (1, 4)),
        *(Moment("work/units/*/cuts.parquet", number) for number in (2, 5)),
        *(Moment("work/units/*/shortened.json", number) for number in (1, 3, NUM_FILES)),
    ],
    "4 workers": [
        Moment(f"{FOUND}/anchors/rows/*.json", 2),
        Moment(f"{FOUND}/runs/reduced/*.json", 1),
        Moment(f"{FOUND}/*/done.json", 5),
        Moment("work/units/*/cuts.parquet", 1),
        Moment("work/units/*/shortened.json", 2),
    ],
}
CASES = [(engine, moment) for engine, moments in MOMENTS.items() for moment in moments]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "moment"), CASES, ids=[f"{e}, {m}" for e, m in CASES])
def test_a_run_that_was_killed_while_it_looked_inside_or_cut_ends_with_the_same_bytes(
    engine: str,
    moment: Moment,
    *,
    undisturbed: tuple[Path, dict[str, dict[str, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, expected = undisturbed
    out = tmp_path / "out"
    plain = recipe_by(ENGINES[engine], out, folder / "pages", "substring")
    path = runs.write_recipe(tmp_path / "recipe.toml", plain)
    with command(path) as driver:
        wait_for(moment, out, driver)
    assert driver.returncode == -signal.SIGKILL
    cut = {marker.parent.name for marker in out.glob("work/units/*/shortened.json")}
    done = {marker.parent.name for marker in out.glob(f"{FOUND}/*/done.json")}
    if engine == "one process":
        again, phases = watched(monkeypatch)
        runs.run(tmp_path / "again", plain)
        assert not cut & set(again) and not done & set(phases)
        assert len(again) == NUM_FILES - len(cut)
    else:
        end_sessions(driver.pid)
        called_to_its_end(path)
    assert fingerprint(str(out)) == expected["substring"]
    assert not verify(Folder(str(out)), verify_hooks(Folder(str(out)))).problems


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """The units that are cut and the phases that look inside from here on."""
    units, phases = list[str](), list[str]()
    cut_unit = apply.cut_unit

    def cut(job: apply.CutJob, item: apply.UnitToCut) -> ShortenedResult:
        units.append(item.unit.key)
        return cut_unit(job, item)

    class Watched(InProcess):
        """Of no other phase than those that are repeated."""

        def run(self, exchange: Exchange) -> dict[int, DedupCounts]:
            phases.append(exchange.name)
            return super().run(exchange)

    monkeypatch.setattr(apply, "cut_unit", cut)
    monkeypatch.setattr(process, "InProcess", Watched)
    return units, phases
