"""Bad input and wrong recipes: no crash, every file accounted for, and errors that say what to do."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lineage.storage.folder import Folder
from lineage.storage.lock import hold
from lineage.verify.output import verify
from pipeline.cli.main import main
from pipeline.inspect.hooks import verify_hooks
from tests.support.inputs.defects import DEFECTS, Defect, write_defects
from tests.support.inputs.make_warc import good, http, member, page, record
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, write_recipe

pytestmark = pytest.mark.hostile("pipeline", "stages")

Plain = dict[str, Any]


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """What `sluice run --json` says of a run over every defective file, one of them in two sources."""
    folder = tmp_path_factory.mktemp("defects")
    write_defects(folder / "in")
    sources = {"bad": (str(folder / "in" / "*"),), "twice": (str(folder / "in" / "record-twice.warc.gz"),)}
    plain = recipe(str(folder / "out"), sources, limits={"max_bad_records": 1.0}, quality={"rules": ["c4"]})
    del plain["parse"]  # the default extractor: the one that most meet
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.MonkeyPatch.context() as patched:
        # Tables without a text are refused before a run: here their reading has to tell of them.
        patched.setattr("pipeline.plan.check_fields", lambda *of_source: None)
        assert main(["run", str(write_recipe(folder / "recipe.toml", plain)), "--json"]) == 0
    found: Plain = json.loads(printed.getvalue())
    return found


@pytest.fixture(scope="module")
def found_in(answer: Plain) -> Callable[[str], tuple[int, int, list[str]]]:
    """(records, documents, errors of unreadable stretches) of a file of source `bad`, as lineage tells."""
    out = Folder(answer["output"])

    def by_name(sql: str) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {}
        for name, value in query(out, sql).rows:
            rows.setdefault(Path(str(name)).name, []).append(value)
        return rows

    records = by_name("SELECT file, num_records FROM inputs WHERE source = 'bad'")
    documents = by_name("SELECT warc_file, count(*) FROM documents WHERE source = 'bad' GROUP BY 1")
    errors = by_name("SELECT file, error FROM unreadable WHERE source = 'bad'")
    return lambda name: (records[name][0], documents.get(name, [0])[0], errors.get(name, []))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defective_file_is_accounted_for_to_the_last_record(
    defect: Defect, found_in: Callable[[str], tuple[int, int, list[str]]]
) -> None:
    records, documents, errors = found_in(defect.name)
    assert (records, documents, len(errors)) == (defect.records, defect.documents, defect.unreadable), errors
    assert all(defect.says in error for error in errors)


def test_a_run_over_nothing_but_defects_balances(answer: Plain) -> None:
    out = Folder(answer["output"])
    assert not verify(out, verify_hooks(out)).problems
    steps = query(
        out, "SELECT source, num_in, num_out, digest_in, digest_out FROM steps ORDER BY source, position"
    ).rows
    for before, after in itertools.pairwise(steps):
        if before[0] == after[0]:
            assert (before[2], before[4]) == (after[1], after[3])
    assert answer["num_unreadable"] == sum(defect.unreadable for defect in DEFECTS)
    assert answer["num_documents"] == sum(defect.documents for defect in DEFECTS) + 3


def test_pages_that_no_extractor_may_see_are_turned_down_by_name(answer: Plain) -> None:
    out = Folder(answer["output"])
    rules = {
        (name, offset): rule
        for name, offset, rule in query(
            out, "SELECT warc_file, warc_offset, rule FROM documents WHERE source = 'bad'"
        ).rows
    }
    second = len(member(good("before")))
    assert rules["page-of-50-mb.warc.gz", second] == "url.too_long"
    assert rules["empty-page.warc.gz", second] == "parse.empty"
    assert rules["tags-nested-100000-deep.warc.gz", second] == "parse.too_deep"
    assert str(rules["gzip-bomb-in-body.warc.gz", second]).startswith("parse.")


def test_the_same_record_in_two_sources_is_kept_once(answer: Plain) -> None:
    rows = query(
        Folder(answer["output"]),
        "SELECT doc_id, count(*), count(*) FILTER (WHERE stage IS DISTINCT FROM 'identity') FROM documents"
        " WHERE doc_id IN (SELECT doc_id FROM documents WHERE source = 'twice') GROUP BY 1",
    ).rows
    assert len(rows) == 2, "a record that is there twice, and another"
    assert all(num > 2 and num_first == 1 for _, num, num_first in rows)


def made(tmp_path: Path, change: Callable[[Plain], object] = lambda plain: None) -> Path:
    """A recipe over one good file, changed."""
    (tmp_path / "a.warc.gz").write_bytes(member(good()))
    plain = recipe(str(tmp_path / "out"), {"web": (str(tmp_path / "*.warc.gz"),)})
    change(plain)
    return write_recipe(tmp_path / "recipe.toml", plain)


def into(table: str, name: str, value: Any) -> Callable[[Plain], object]:
    return lambda plain: plain.setdefault(table, {}).__setitem__(name, value)


def source(name: str, value: Any) -> Callable[[Plain], object]:
    return lambda plain: plain["source"][0].__setitem__(name, value)


WRONG_RECIPES: dict[str, tuple[Callable[[Plain], object], tuple[str, ...]]] = {
    "unknown key": (into("dedup", "treshold", 0.7), ("dedup.treshold", "0.7", "dedup.threshold")),
    "unknown table": (into("dedupe", "near", True), ("dedupe", "did you mean 'dedup'")),
    "unknown source key": (source("glob", "*"), ("source[0].glob", "inputs")),
    "text for a number": (into("dedup", "threshold", "high"), ("dedup.threshold", "'high'", "a number")),
    "number for a text": (into("run", "name", 7), ("run.name", "7", "a string")),
    "share for a count": (into("dedup", "num_perm", 12.5), ("dedup.num_perm", "12.5", "a whole number")),
    "number for a switch": (into("dedup", "near", 1), ("dedup.near", "1", "true or false")),
    "text for a list": (source("inputs", "a.warc.gz"), ("source", "inputs", "'a.warc.gz'", "a list")),
    "text for a table": (lambda plain: plain.__setitem__("dedup", "no"), ("dedup", "'no'", "a table")),
    "below the range": (into("limits", "max_bad_records", -0.1), ("limits.max_bad_records", "-0.1", "at least 0")),
    "above the range": (into("language", "min_score", 1.5), ("language.min_score", "1.5", "at most 1")),
    "not finite": (into("language", "min_score", float("nan")), ("language.min_score", "nan", "finite")),
    "unknown choice": (into("parse", "extractor", "lynx"), ("parse.extractor", "'lynx'", "'trafilatura'")),
    "unknown rule set": (into("quality", "rules", ["gofer"]), ("quality.rules", "'gofer'", "'gopher_quality'")),
    "unknown kind": (into("pii", "kinds", ["shoe size"]), ("pii.kinds", "'shoe size'", "'email'")),
    "unknown format": (source("format", "arc"), ("format", "'arc'", "'warc'")),
    "unknown step": (source("steps", ["url", "parse", "lingo"]), ("steps", "'lingo'", "language")),
    "step of nowhere": (source("steps", ["parse", "nowhere.at:all"]), ("steps", "nowhere.at:all", "package.module")),
    "steps out of order": (source("steps", ["parse", "url"]), ("steps", "out of order", "'url', 'parse'")),
    "no parse": (source("steps", ["url"]), ("steps", "no 'parse'")),
    "no source": (lambda plain: plain.__setitem__("source", []), ("source", "at least one")),
    "no inputs": (source("inputs", []), ("inputs", "'web'", "at least one file")),
    "name with a slash": (source("name", "../web"), ("source.name", "'../web'", "letters")),
    "output missing": (lambda plain: plain["run"].pop("output"), ("run.output", "missing")),
    "limit of nothing": (source("limit", 0), ("limit", "0", "at least 1")),
    "encoding unknown": (into("tokenize", "encoding", "klingon"), ("klingon",)),
    "tokenizer not there": (into("tokenize", "encoding", "/nowhere/t.json"), ("/nowhere/t.json",)),
    "list not there": (into("url", "block_hosts", ["/nowhere/hosts.txt"]), ("/nowhere/hosts.txt",)),
    "model not there": (into("language", "model", "/nowhere/lid.bin"), ("/nowhere/lid.bin",)),
    "earlier output not there": (into("dedup", "against", ["/nowhere/out"]), ("/nowhere/out",)),
    "language without rules": (into("language", "keep", ["tlh"]), ("tlh",)),
    "bands that do not divide": (into("dedup", "bands", 17), ("dedup", "17")),
}  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WRONG_RECIPES.values(), ids=WRONG_RECIPES.keys())
def test_a_wrong_recipe_is_refused_with_key_value_and_what_is_allowed(
    change: Callable[[Plain], object],
    said: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", str(made(tmp_path, change))]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(word in printed.err for word in said), printed.err
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir()), (
        "a wrong recipe leaves nothing"
    )


WRONG_OVERRIDES = {
    "run.seed": ("run.seed", "key=value"),
    "=7": ("=7", "key=value"),
    "run..seed=7": ("run..seed=7", "key=value"),
    "run.seed=seven": ("run.seed", "'seven'", "a whole number"),
    "run.seed=-1": ("run.seed", "-1", "at least 0"),
    "source.1.limit=2": ("source.1.limit", "0 to 0"),
    "source.limit=2": ("source.limit", "source.0.key"),
    "run.name.first=a": ("run.name.first", "is a value, not a table"),
    "run.sed=7": ("run.sed", "run.seed"),
}


@pytest.mark.parametrize(("override", "said"), WRONG_OVERRIDES.items(), ids=WRONG_OVERRIDES.keys())
def test_a_wrong_override_is_refused_naming_it(
    override: str, said: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(made(tmp_path)), "--set", override]) == 2
    printed = capsys.readouterr().err
    assert all(word in printed for word in said), printed


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{folder}", ("it is a folder", "*.warc.gz")),
        ("{folder}/nowhere.warc.gz", ("no file", "nowhere.warc.gz")),
        ("{folder}/*.parquet", ("matches no file", "*.parquet")),
        ("{folder}/empty.paths", ("the list is empty",)),
    ],
)
def test_inputs_that_are_not_there_are_named_before_anything_runs(
    entry: str, said: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.paths").write_text("\n")
    assert main(["run", str(made(tmp_path, source("inputs", [entry.format(folder=tmp_path)])))]) == 2
    printed = capsys.readouterr().err
    assert all(word in printed for word in said), printed


def test_toml_that_is_none_and_recipes_that_are_not_there_end_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.toml").write_text("[run\nname = 1")
    assert main(["run", str(tmp_path / "broken.toml")]) == 2
    assert "cannot be read as TOML" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "none.toml")]) == 2
    assert "no recipe at" in capsys.readouterr().err
    assert main(["run", str(tmp_path)]) == 2
    assert main(["walk"]) == 2
    assert "no command 'walk'" in capsys.readouterr().err
    for wrong in (["run"], ["run", "a.toml", "--fast"]):
        with pytest.raises(SystemExit, match="2"):
            main(wrong)


def test_what_cannot_be_done_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small_ray: None
) -> None:
    with hold(Folder(str(tmp_path / "out")), "a test"):
        assert main(["run", str(made(tmp_path))]) == 1
    assert "is held by another process" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("sluice report: ")
    (tmp_path / "b.warc.gz").write_bytes(b"no warc" * 100)
    assert main(["run", str(made(tmp_path)), "--set", "limits.max_bad_records=0"]) == 1
    assert "1 of 2 records are unreadable" in capsys.readouterr().err
    on_ray = ["--set", "ray.address=local", "--set", "ray.unit_cpus=1000"]
    assert main(["run", str(made(tmp_path)), "--set", f"run.output={tmp_path / 'elsewhere'}", *on_ray]) == 1
    assert "no node has CPU 1000" in capsys.readouterr().err


def test_files_that_hold_no_document_give_an_empty_output_and_end_with_1(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"")
    sources = {"one": (str(tmp_path / "empty.jsonl"),), "two": (str(tmp_path / "none.warc"),)}
    (tmp_path / "none.warc").write_bytes(record(http(page("gone"), status="404 Not Found")))
    plain = recipe(str(tmp_path / "out"), sources, limits={"max_bad_records": 1.0})
    assert main(["run", str(write_recipe(tmp_path / "recipe.toml", plain))]) == 1
    out = Folder(str(tmp_path / "out"))
    assert query(out, "SELECT count(*) FROM documents").rows == [(0,)]
    assert query(out, "SELECT sum(num_records) FROM inputs").rows == [(1,)]
    assert not verify(out, verify_hooks(out)).problems
