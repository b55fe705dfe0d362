"""What calls of the commands answer: options in any order, exit codes, what lies where."""

from __future__ import annotations

import io
import json
import shlex
import shutil
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from lineage.storage.folder import Folder
from pipeline.cli.commands import parse_command
from pipeline.cli.corpus.summary import show_summary
from pipeline.cli.main import main
from pipeline.demo.pages import write_article
from pipeline.results.run_summary import RunSummary
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run, write_recipe


def test_rows_that_are_wider_than_the_terminal_stand_a_field_a_line(
    out: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = "SELECT doc_id, 'a' || chr(27) || 'b' AS odd, num_chars FROM documents ORDER BY warc_offset"
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["lineage", out, wide]) == 0
    piped = capsys.readouterr().out.splitlines()
    assert piped[0].split() == ["doc_id", "odd", "num_chars"], "a pipe can cut: a row a line"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["lineage", out, wide]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[:5]] == ["row", "doc_id", "odd", "num_chars", "row"]
    assert "\\x1b" in shown[2] and len(shown) == 4 * (len(piped) - 2)
    assert main(["lineage", out, "SELECT 1 AS n"]) == 0
    assert capsys.readouterr().out.splitlines() == ["n", "-", "1"]


def test_help_of_an_action_has_the_lines_that_continue_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for action, continued in (("diff", "approximated or missing here"), ("schema", "#:schema ./data.json")):
        with pytest.raises(SystemExit, match="0"):
            main(["recipe", action, "--help"])
        assert continued in (shown := capsys.readouterr().out)
        assert "sluice recipe new" not in shown


def posts(num: int, seed: int) -> list[dict[str, str]]:
    import random

    rng = random.Random(seed)
    return [{"id": str(n), "text": write_article("en", rng).text} for n in range(num)]


def write_posts(path: Path, rows: list[dict[str, str]]) -> dict[str, tuple[str, ...]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"posts": (str(path),)}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A finished run of three posts, one of which stands in its file twice and holds an e-mail address."""
    folder = tmp_path_factory.mktemp("commands")
    rows = posts(3, 1)
    rows[0]["text"] += " Write to somebody@mail.example.com about it."
    sources = write_posts(folder / "posts.jsonl", [*rows, rows[0]])
    run(folder, recipe(str(folder / "out"), sources))
    return str(folder / "out")


def test_a_record_that_its_file_holds_twice_was_edited_once(out: str) -> None:
    asked = "SELECT d.status, count(e.doc_id) FROM documents d LEFT JOIN edits e USING (doc_id) GROUP BY ALL ORDER BY 1"
    assert query(Folder(out), "SELECT count(*) FROM edits").rows == [(1,)]
    assert [row[0] for row in query(Folder(out), asked).rows] == ["duplicate", "kept"]
    assert main(["verify", out]) == 0


def test_verify_says_that_there_are_more_problems_than_it_lists(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = shutil.copytree(out, tmp_path / "out")
    for number in range(1001):
        (damaged / "documents" / f"stray-{number}.parquet").touch()
    assert main(["verify", str(damaged)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 1000
    assert last == "The first 1,000 problems, and there are more: mend these and verify again"
    assert main(["verify", str(damaged), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (len(told["problems"]), told["has_more"]) == (1000, True)


@pytest.mark.parametrize("options", [["--json"], ["--csv"], ["--version", "1"], ["--version", "1", "--json"]])
def test_options_may_stand_before_the_select(
    out: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT count(*) AS num FROM documents"
    assert main(["lineage", out, *options, sql]) == 0
    before = capsys.readouterr().out
    assert main(["lineage", out, sql, *options]) == 0
    assert capsys.readouterr().out == before != ""


def answered(call: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        code = main(call)
    except SystemExit as error:
        code = int(str(error.code))
    return code, capsys.readouterr().err


@pytest.mark.parametrize(("call", "words"), [
    (["lineage", "OUT", "DROP TABLE documents"], ("only SELECT",)),
    (["lineage", "OUT", "SELECT nothing FROM documents"], ("nothing", "views")),
    (["lineage", "OUT", "--csv", "--json", "SELECT 1"], ("--json", "--csv")),
    (["trace", "OUT", "--host", "a", "--limit", "-1"], ("--limit", "-1", "0 or more")),
    (["trace", "OUT", "--run", "a", "--step", "-1"], ("--step", "-1", "0 or more")),
    (["purge", "OUT", "--doc", "0" * 32, "--by", "me", "--reason", " "], ("--reason", "empty")),
    (["scan", "OUT", "--against", "b.jsonl", "--to", "s.json", "--max-share", "7"], ("--max-share", "'7'", "0 to 1")),
    (["trace", "OUT", "--host", "a.example", "--step", "3"], ("--step", "--run")),
    (["trace", "OUT", "--run", "r", "--step", "3", "--offset", "0"], ("--offset", "--warc or --shard")),
    (["scan", "OUT", "--against", "b.jsonl", "--to", "OUT/s.json"], ("--to", "elsewhere")),
    (["tokenizer", "train", "OUT", "--vocab", "300", "--to", "OUT/t.tiktoken"], ("--to", "finished output")),
    (["tokenizer", "train", "OUT", "--vocab", "300", "--to", "/tmp/t.json"], ("/tmp/t.json", ".tiktoken")),
    (["lineage", "OUT", "SELECT 1 a, 2 a", "--json"], ("'a'", "AS")),
    (["plan", "recipes/train.toml", "--search", "--limit", "0"], ("--limit 0", "at least 1")),
    (["purge", "OUT", "--from", "/no-such-scan.json", "--by", "me", "--reason", "r"], ("--from", "/no-such-scan.json")),
    (["demo", "--pages", "10"], ("10 pages", "at least")),
])  # fmt: skip
def test_a_wrong_call_ends_with_2_and_says_what_was_expected(
    out: str, call: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = answered([part.replace("OUT", out) for part in call], capsys)
    assert code == 2
    assert not [word for word in words if word not in told]


def test_an_output_without_its_index_is_not_answered_for(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(out, tmp_path / "out")
    (tmp_path / "out" / "index.json").unlink()
    there, plain = str(tmp_path / "out"), str(tmp_path / "out" / "recipe.toml")
    for call in (
        ["trace", there, "--doc", "0" * 32],
        ["lineage", there, "SELECT 1"],
        ["explain", there, "--doc", "0" * 32],
        ["tune", plain, "--from", there],
    ):
        code, told = answered(call, capsys)
        assert (code, "the run is not finished" in told) == (1, True), call


def test_a_training_does_not_write_into_a_finished_output(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = str(tmp_path / "training")
    for key, place in (
        ("output", out),
        ("output", f"{out}/training"),
        ("checkpoint.path", f"{out}/checkpoints"),
        ("cache.dir", f"{out}/cache"),
    ):
        path = tmp_path / "train.toml"
        train = {
            "data": out,
            "output": elsewhere,
            "model": "debug",
            "seq_len": 64,
            "global_batch": 2,
            "steps": 1,
        }
        path.write_text(tomli_w.dumps({"run": {"name": "t"}, "train": train, "mix": {}}))
        for call in (["train"], ["mix", "run"]) if key == "output" else (["train"],):
            code, told = answered([*call, str(path), "--set", f"train.{key}={place}"], capsys)
            assert (code, f"train.{key} {place} lies under {out}" in told) == (2, True), told
    assert main(["verify", out]) == 0


@pytest.mark.parametrize(("table", "words"), [
    ({"run": {"output": "ftp://host/out"}}, ("run.output", "ftp", "s3://")),
    ({"run": {"output": ""}}, ("run.output", "empty")),
    ({"run": {"name": ""}}, ("run.name", "empty")),
    ({"run": {"output": "s3://bucket/out#1"}}, ("run.output", "because of '#'")),
    ({"purges": {"honour": ["/no/such/out"]}}, ("purges.honour", "/no/such/out")),
    ({"dedup": {"against": ["/no/such/out"]}}, ("dedup.against", "/no/such/out")),
    ({"url": {"block_hosts": ["/no/such/list"]}}, ("url.block_hosts", "/no/such/list")),
    ({"language": {"model": "/no/such/model.bin"}}, ("language.model", "/no/such/model.bin")),
    ({"tokenize": {"encoding": "/no/such.json"}}, ("tokenize.encoding", "/no/such.json")),
])  # fmt: skip
def test_a_wrong_recipe_ends_with_2_and_names_the_key(
    tmp_path: Path,
    table: dict[str, dict[str, object]],
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sources = write_posts(tmp_path / "posts.jsonl", posts(2, 2))
    path = write_recipe(tmp_path / "r.toml", recipe(str(tmp_path / "out"), sources, **table))
    code, told = answered(["run", str(path)], capsys)
    assert code == 2
    assert not [word for word in words if word not in told]


def test_a_stage_that_no_source_names_does_not_compare(tmp_path: Path) -> None:
    rows = posts(2, 3)
    plain = recipe(
        str(tmp_path / "out"), write_posts(tmp_path / "posts.jsonl", [*rows, rows[0] | {"id": "again"}])
    )
    plain["source"][0]["steps"] = ["parse", "identity", "dedup.url"]
    run(tmp_path, plain)
    folder = Folder(str(tmp_path / "out"))
    assert query(folder, "SELECT stage FROM steps ORDER BY position").rows == [
        ("parse",),
        ("identity",),
        ("dedup.url",),
    ]
    assert query(folder, "SELECT count(*) FROM documents WHERE status = 'kept'").rows == [(3,)]


def test_a_purge_names_the_earlier_output_that_holds_the_same_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = write_posts(tmp_path / "posts.jsonl", posts(2, 4))
    run(tmp_path / "a", recipe(str(tmp_path / "first"), sources))
    run(
        tmp_path / "b",
        recipe(str(tmp_path / "second"), sources, dedup={"against": [str(tmp_path / "first")]}),
    )
    ((doc_id,), *_) = query(
        Folder(str(tmp_path / "second")), "SELECT doc_id FROM documents ORDER BY doc_id"
    ).rows
    call = ["purge", str(tmp_path / "second"), "--doc", str(doc_id), "--by", "me", "--reason", "takedown"]
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["elsewhere"] == [
        {"doc_id": doc_id, "out": str(tmp_path / "first")}
    ]
    assert main([*call, "--apply"]) == 0
    capsys.readouterr()
    assert main(call) == 0
    assert f"sluice purge {tmp_path / 'first'} --doc {doc_id}" in capsys.readouterr().out
    (tmp_path / "first").rename(tmp_path / "moved")
    assert main(call) == 0
    assert (
        f"an earlier output (maybe in what cannot be opened: {tmp_path / 'first'})" in capsys.readouterr().out
    )
    assert main([*call, "--json"]) == 0
    place = {"doc_id": doc_id, "out": None, "not_opened": [str(tmp_path / "first")]}
    assert json.loads(capsys.readouterr().out)["elsewhere"] == [place]
    assert main(["verify", str(tmp_path / "second")]) == 1
    assert f"duplicates.earlier: {tmp_path / 'first'}: cannot be opened" in capsys.readouterr().out


def test_a_document_that_nothing_repeats_is_a_cluster_of_its_own(
    out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ((doc_id,), *_) = query(Folder(out), "SELECT doc_id FROM documents WHERE cluster_id IS NULL").rows
    assert main(["trace", out, "--doc", str(doc_id), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == {
        "id": doc_id,
        "size": 1,
        "duplicate_of": None,
        "similarity": None,
        "members": [doc_id],
    }


def test_the_table_of_a_run_names_stages_in_the_order_in_which_documents_meet_them() -> None:
    rejected = {
        "dedup.near": {"dedup.near": 1},
        "identity": {"identity": 1},
        "language": {"language.not_kept": 3},
        "mine:step": {"mine": 1},
        "parse": {"parse.empty": 2, "parse.error": 2, "parse.crashed": 9},
    }
    counts = ("bytes", "documents", "kept", "unreadable", "records", "files", "tokens", "shards")
    summary = RunSummary(
        name="r",
        output="out",
        rejected=rejected,
        dedup={},
        order_fingerprint="",
        content_fingerprint="",
        seconds={},
        phases=(),
        identity={"recipe": {"source": [], "dedup": {}, "tokenize": {}}},
        **{f"num_{name}": 1 for name in counts},
    )
    written = io.StringIO()
    show_summary(Console(file=written, width=100), summary)
    assert (
        "1 record of 1 file read, 1 of them documents, 1 unreadable stretch; 1 token in 1 shard."
        in written.getvalue()
    )
    offered = [line.split() for line in written.getvalue().splitlines() if line.startswith("  sluice ")]
    for _, name, *words in offered:  # what it offers to call next can be called
        parse_command(name, shlex.split(" ".join(words), comments=True))
    assert [words[1] for words in offered] == ["verify", "lineage", "export"]
    rows = [line.split() for line in written.getvalue().splitlines()]
    assert [row[1] for row in rows if len(row) == 3 and row[2].isdigit()] == [
        "parse.crashed",
        "parse.empty",
        "parse.error",
        "language.not_kept",
        "mine",
        "identity",
        "dedup.near",
    ]
