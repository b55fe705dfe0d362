"""Calls that a first try gets wrong: one sentence with the value and what to do, the exit code, and nothing
started for it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.storage.errors import what_to_do
from lineage.store.queries.query import query
from pipeline.cli.main import main
from pipeline.cluster.session import RayStartError
from tests.support.checkout import ROOT
from tests.support.outputs.runs import ON_RAY, recipe, write_recipe
from tests.support.outputs.small_out import hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.outputs.tiny_corpus import make_corpus
from tests.support.steps.model_steps import EVENTS
from trainer.mix.proxies import AblationError


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever would start Ray fails, for its session is never opened."""

    def opened(*_: Any) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("pipeline.process.units_session", opened)


def told(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    """What a call says on stderr that ends with this exit code."""
    assert main(list(words)) == code
    return capsys.readouterr().err


def posts(folder: Path, **changes: Any) -> str:
    (folder / "posts.jsonl").write_text(json.dumps({"text": "a short post", "id": "1"}) + "\n")
    plain = recipe(str(folder / "out"), {"posts": (str(folder / "posts.jsonl"),)}, **changes)
    return str(write_recipe(folder / "recipe.toml", plain))


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ('language.keep=["english"]', "has no label 'english' (did you mean 'en'?): its labels are "),
        ('language.keep=["German", "fr"]', "has no label 'German' (did you mean 'de'?): its labels are "),
        (
            'language.keep=["Deutsch", "klingon"]',
            "'Deutsch' (did you mean 'de'?), 'klingon': its labels are ",
        ),
        ('language.keep=["englsh"]', "has no label 'englsh' (did you mean 'en'?)"),
        ("quality.language.english.min_words=3", "quality.language.english is given (did you mean 'en'?)"),
        ("quality.language.norwegian.min_words=3", "such as de or deu_Latn (did you mean 'nb'?)"),
        ("language.min_scores.german=0.3", "does not name that language (did you mean 'de'?)"),
        ("source.0.language=portuguese", "such as de (did you mean 'pt'?)"),
        ("repeat.language.german.table.1=2", "repeat.language.german is given (did you mean 'de'?)"),
    ],
)
@pytest.mark.usefixtures("no_ray")
def test_a_language_by_its_name_is_told_its_label(
    setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = posts(tmp_path)
    assert says in told(capsys, 2, "run", path, "--set", 'language.keep=["de", "en"]', "--set", setting)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keep", ["[]", '"all"'])
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("quality.language.xx.min_words=3", "language.model = 'bundled' has no label for it"),
        ("repeat.language.deu_Cyrl.table.1=2", "language.model = 'bundled' has no label for it"),
        (
            "language.min_scores.xx=0.3",
            "language.min_scores.xx is given, and the model 'bundled' has no label",
        ),
    ],
)
@pytest.mark.usefixtures("no_ray")
def test_where_all_languages_are_kept_one_that_the_model_does_not_know_is_refused(
    setting: str, says: str, keep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ("run", posts(tmp_path), "--set", f"language.keep={keep}", "--set", 'quality.no_table="pass"')
    assert says in told(capsys, 2, *call, "--set", setting)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("min_words=3", "quality.min_words"),
        ("min_word=3", "quality.min_words"),
        ("treshold=0.7", "dedup.threshold"),
        ("shard_token=9", "tokenize.shard_tokens"),
        ("qualty.min_words=3", "quality"),
    ],
)
@pytest.mark.parametrize("command", ["run", "recipe check"])
def test_a_short_or_misspelt_key_is_told_whole(
    command: str, setting: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), posts(tmp_path), "--set", setting]) == 2
    printed = capsys.readouterr()
    assert f"did you mean {meant!r}?" in printed.out + printed.err


@pytest.mark.parametrize("setting", ["xyzzy=3", "words_at_least=3"])
def test_what_is_like_no_key_gets_no_guess(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean" not in told(capsys, 2, "run", posts(tmp_path), "--set", setting)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ((), "there is no column 'text', only body, id: name the right one as source.text_field"),
        (("source.0.text_field=bodi",), "there is no column 'bodi', only body, id"),
        (("source.0.text_field=body", "source.0.id_field=nr"), "there is no column 'nr', only body, id"),
        (("source.0.text_field=body", "source.0.url_field=a.b"), "there is no column 'a.b', only body, id"),
    ],
)
@pytest.mark.usefixtures("no_ray")
def test_a_column_that_a_parquet_file_lacks_is_told_by_its_footer(
    settings: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"body": ["some words"], "id": ["a"]}), tmp_path / "a.parquet")
    plain = recipe(str(tmp_path / "out"), {"posts": (str(tmp_path / "*.parquet"),)})
    path = str(write_recipe(tmp_path / "r.toml", plain))
    assert says in told(capsys, 2, "run", path, *(word for one in settings for word in ("--set", one)))
    assert not (tmp_path / "out").exists()


OUT_IS_A_FILE = (
    "verify {}",
    "report {}",
    "trace {} --doc 00000000000000000000000000000000",
    'lineage {} "SELECT 1"',
    "purge {} --host a.example --reason r --by me",
    "scan {} --against {} --to scan.json",
    "export {} --format hf --to copy",
    "tune --from {}",
    "run {recipe} --from {}",
)


@pytest.mark.parametrize("call", OUT_IS_A_FILE)
def test_a_file_in_place_of_an_output_is_named(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = posts(tmp_path)
    says = told(capsys, 1, *shlex.split(call.format("posts.jsonl", "posts.jsonl", recipe=path)))
    assert (
        f"no index.json in {tmp_path}/posts.jsonl: it is a file, and the output of a run is the folder"
        in says
    )


def test_files_without_a_record_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = posts(tmp_path)
    (tmp_path / "posts.jsonl").write_text("\n\n")
    says = told(capsys, 1, "run", path)
    assert "no record of 1 file could be read:\n  there is no record in posts.jsonl" in says


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallOut:
    return make_small_out(str(tmp_path_factory.mktemp("small") / "out"))


@pytest.mark.parametrize("host", ["nowhere.{domain}", "www.nowhere.{domain}", "NOWHERE.{domain}."])
def test_a_takedown_of_an_absent_host_says_what_its_domain_has(
    host: str, small: SmallOut, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The small output has no whole recipe, which the hooks of real outputs read.
    monkeypatch.setattr("pipeline.inspect.hooks.plan_hooks", lambda _out: hooks.plan_hooks())
    ((domain, num),) = query(
        small.folder,
        "SELECT domain, count(*) FROM documents WHERE domain IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1",
    ).rows
    asked = host.format(domain=domain)
    says = told(capsys, 1, "purge", small.folder.url, "--host", asked, "--reason", "r", "--by", "me")
    assert f"has no host {asked!r}: nothing was planned; {num} documents are of other hosts of its" in says
    assert f"--domain {domain} takes them all" in says


def test_a_list_in_another_encoding_is_to_be_saved_as_utf_8(
    small: SmallOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of takedowns, and one of hosts that a run is to leave out, before it starts anything."""
    monkeypatch.setattr("pipeline.inspect.hooks.plan_hooks", lambda _out: hooks.plan_hooks())
    (tmp_path / "list.txt").write_bytes("https://münchen.example/\n".encode("cp1252"))
    words = ("--from", str(tmp_path / "list.txt"), "--reason", "r", "--by", "me")
    says = told(capsys, 2, "purge", small.folder.url, *words)
    assert "list.txt" in says and "is not UTF-8 (byte 0xfc in line 1)" in says and "save it as UTF-8" in says
    says = told(capsys, 2, "run", posts(tmp_path), "--set", f"url.block_hosts=['{tmp_path}/list.txt']")
    assert "list.txt" in says and "is not UTF-8 (byte 0xfc in line 1)" in says and "save it as UTF-8" in says
    assert not (tmp_path / "out").exists()


def test_a_line_of_a_takedown_list_that_is_not_there_comes_with_the_nearest_page(
    small: SmallOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.inspect.hooks.plan_hooks", lambda _out: hooks.plan_hooks())
    urls = [record.url for record in small.records if record.url and record.status == "kept"]
    (tmp_path / "list.txt").write_text(f"{urls[0]}\n{urls[1]}x\n")
    words = ("--from", str(tmp_path / "list.txt"), "--reason", "r", "--by", "me")
    assert f"{urls[1]}x; nearest: {urls[1]}" in told(capsys, 0, "purge", small.folder.url, *words)
    (tmp_path / "list.txt").write_text(f"{urls[1]}x\n")
    assert urls[1] in told(capsys, 1, "purge", small.folder.url, *words)


def test_a_file_system_without_locks_is_told_with_the_way_out_and_leaves_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    says = told(capsys, 1, "run", posts(tmp_path))
    assert f"{tmp_path}/out cannot be locked (Function not implemented)" in says
    assert "name a folder of a" in says


MODEL_STEPS = "tests.support.steps.model_steps"


def posted(folder: Path, *settings: str) -> list[str]:
    """The call of a run over one post, which it keeps, with settings."""
    plain = ('source.0.steps=["parse", "identity"]', "language.keep=[]", *settings)
    return ["run", posts(folder), *(word for one in plain for word in ("--set", one))]


def test_a_wrong_text_field_leaves_the_output_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that the first lines tell, and one that only reading tells: no document was read by either."""
    says = told(capsys, 2, *posted(tmp_path, "source.0.text_field=body"))
    assert "'body'" in says and not (tmp_path / "out").exists()
    many = "".join(json.dumps({"text": f"a short post {number}"}) + "\n" for number in range(2_000))
    call = posted(tmp_path, "source.0.text_field=note", "limits.max_bad_records=0")
    (tmp_path / "posts.jsonl").write_text('{"note": {"by": "me"}, "text": "a post"}\n' + many)
    assert main(call) != 0
    assert (tmp_path / "out" / "work" / "plan.json").exists(), "it had begun"
    capsys.readouterr()
    right = [word.replace("text_field=note", "text_field=text") for word in call]
    assert "with other inputs or settings" in told(capsys, 0, *right)


def test_a_ray_that_does_not_start_leaves_the_output_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened(*_: Any) -> None:
        raise RayStartError("Ray did not start: no port is free")

    call = posted(tmp_path, "dedup.rows=7")
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.process.units_session", opened)
        assert "no port is free" in told(capsys, 1, *call)
    assert (tmp_path / "out" / "work" / "plan.json").exists(), "it had begun"
    says = told(capsys, 0, *posted(tmp_path, "dedup.rows=4"))
    assert "begins anew with other settings" in says and "dedup.rows is 4 now and was 7" in says


def test_a_design_with_other_keys_takes_the_place_of_one_that_no_run_has_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_corpus(str(tmp_path / "corpus"), {"web": [9000], "books": [6000]}).url
    train = {"data": data, "output": str(tmp_path / "mixed"), "model": "debug", "seq_len": 32}
    plain: dict[str, Any] = {
        "run": {"name": "mixed"},
        "train": train | {"global_batch": 8, "steps": 100, "validation": 0.1},
        "mix": {"runs": 4, "replicates": 1, "held_out": 0, "proxy": {"tokens": 2000}},
    }
    path = str(write_recipe(tmp_path / "mix.toml", plain))
    assert main(["mix", "design", path, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["runs"]
    assert main(["mix", "design", path, "--set", "mix.replicates=3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == len(first) + 2
    attempts = tmp_path / "mixed" / "mix" / "runs" / first[0]["name"] / "attempts"
    attempts.mkdir(parents=True)
    (attempts / "00001.claim").write_text("{}")
    says = told(capsys, 2, "mix", "design", path)
    assert "0 runs are done and 1 begun: mix.replicates is 1 now and was 3" in says


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (('language.keep=["de"]',), "language.keep is given, and no source.steps names 'language'"),
        (("language.min_score=0.3",), "language.min_score is given, and no source.steps names 'language'"),
        (("language.model=extension",), "language.model is given, and no source.steps names 'language'"),
        (
            ('source.0.steps=["parse", "dedup.near"]', "dedup.verify=false", "dedup.threshold=0.7"),
            "dedup.threshold = 0.7 decides nothing",
        ),
        (("dedup.threshold=0.7",), "dedup.threshold is given, and no source.steps names 'dedup.near'"),
        (
            ("dedup.keep=newest", "dedup.url=false"),
            "dedup.keep is given, and no source.steps names 'dedup.exact' or 'dedup.near', which reads it",
        ),
        (
            ('source.0.steps=["parse", "dedup.exact"]', "dedup.bands=4"),
            "dedup.bands is given, and no source.steps names 'dedup.near'",
        ),
        (("dedup.inside.min_bytes=100",), 'dedup.inside is given, and dedup.inside.method = "none"'),
        (("quality.rules=[]",), "quality.rules is given, and no source.steps names 'quality'"),
        (("quality.no_table=pass",), "quality.no_table is given, and no source.steps names 'quality'"),
        (("pii.action=drop",), "pii.action is given, and no source.steps names 'pii'"),
        (
            ("decontaminate.ratio=0.7",),
            "decontaminate.ratio is given, and no source.steps names 'decontaminate'",
        ),
        (
            ("tokenize.off=true", "tokenize.group_files=3"),
            "tokenize.group_files is given, and with tokenize.off",
        ),
        (
            ("source.0.fragments=true",),
            "source.fragments of 'posts' is given, and no source.steps names 'dedup.url'",
        ),
        (
            ("url.min_soft_words=3",),
            "url.min_soft_words = 3 decides nothing: url.block_soft_words names no list",
        ),
    ],
)
@pytest.mark.parametrize("command", ["run", "recipe check"])
def test_a_key_that_nothing_reads_is_told(
    command: str, settings: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ('source.0.steps=["parse", "identity"]', "language.keep=[]", "ray.address=none", *settings)
    words = [word for one in given for word in ("--set", one)]
    assert main([*command.split(), posts(tmp_path), *words]) == 0
    printed = capsys.readouterr()
    assert says in printed.out + printed.err


@pytest.mark.parametrize(
    "settings",
    [
        ("language.keep=[]",),
        ('language.keep=["en"]',),  # the default: a recipe that an output keeps has every key
        ("language.keep=[]", "dedup.near=false", "dedup.verify=false", "dedup.threshold=0.7"),
        ("language.keep=[]", "dedup.inside.method=line", "dedup.keep=newest", "dedup.engine=local"),
    ],
)
def test_nothing_is_told_of_a_key_that_asks_for_nothing(
    settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for one in ('source.0.steps=["parse", "identity"]', *settings) for word in ("--set", one)]
    assert main(["recipe", "check", posts(tmp_path), *words]) == 0
    assert "note:" not in capsys.readouterr().out


def test_explain_draws_no_frames_into_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(f"Line {number} of a note, as long as lines of notes are." for number in range(300))
    (tmp_path / "note.txt").write_text(text)
    assert main(["explain", posts(tmp_path), "--text", str(tmp_path / "note.txt")]) == 0
    printed = capsys.readouterr().out
    assert "gopher_quality.too_few_words" in printed and "Line 1 of a note" in printed
    assert not set(printed) & set("│┃─━╭╮╰╯┏┓┗┛")
    assert len(printed) < 3 * len(text)


def test_a_plan_of_the_recipe_to_begin_with_loses_no_more_steps_than_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(ROOT / "recipes" / "train.toml"), "--json"]) == 0
    saved = json.loads(capsys.readouterr().out)["checkpoint"]
    assert 0 <= saved["overhead"] < 0.01
    assert saved["overhead"] < saved["blocking_overhead"]


def test_what_a_process_has_said_on_a_full_disk_is_not_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = f"[Errno 28] {os.strerror(errno.ENOSPC)}: 'runs/a'"
    advice = what_to_do(reason)
    assert advice is not None

    def ended(*_: Any) -> int:
        raise AblationError(f"proxy run a ended with exit code 1: sluice: {reason}\n{advice}")

    monkeypatch.setattr("pipeline.cli.training.mix.run", ended)
    assert told(capsys, 1, "mix", "run", posts(tmp_path)).count(advice) == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Shout", "DiesTenTimes", "encoder"])
def test_no_line_of_ray_is_among_those_of_a_run_with_a_model(model: str, tmp_path: Path) -> None:
    """A class of the user's, one whose processes die, which Ray has much to say on, and an encoder."""
    (tmp_path / "posts.jsonl").write_text(
        "".join(json.dumps({"text": f"a long page of post {n}"}) + "\n" for n in range(50))
    )
    plain = recipe(str(tmp_path / "out"), {"posts": (str(tmp_path / "posts.jsonl"),)}, ray=ON_RAY)
    plain["source"][0]["steps"] = ["parse", f"{MODEL_STEPS}:{model}", "identity"]
    if model == "encoder":
        from tests.support.steps.tiny_encoder import make_encoder  # with torch and transformers: seconds

        plain["source"][0]["steps"][1] = "classifier"
        folder = make_encoder(tmp_path / "encoder")
        plain["classifier"] = [{"name": "high", "model": folder, "label": "high", "reject": "never"}]
    elif model == "DiesTenTimes":
        plain["step"] = [
            {"name": f"{MODEL_STEPS}:{model}", "batch_size": 16, "num_cpus": 0.5, "actors": [1, 2]}
        ]
        plain["ray"] = {**ON_RAY, "retries": 20}
    path = str(write_recipe(tmp_path / "recipe.toml", plain))
    ended = subprocess.run(
        [sys.executable, "-m", "pipeline", "run", path],
        cwd=ROOT,
        env={**os.environ, EVENTS: str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert model != "DiesTenTimes" or [*tmp_path.glob("died-*")]
    said = (ended.stdout + ended.stderr).replace("for a Ray of its own", "").replace("starting Ray", "")
    assert "read and ask models" in said
    assert not [
        line
        for line in said.splitlines()
        if re.search(r"(?i)\bray\b|pid=|raylet|\bgcs\b|warning|\binfo\b|loading weights", line)
    ]
