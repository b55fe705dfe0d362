"""Calls that a first try gets wrong: one sentence with the value and what to do, the exit code, and nothing
started for it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.store.query import query
from pipeline.cli.main import main
from tests.support.outputs.runs import recipe, write_recipe
from tests.support.outputs.small_out import hooks
from tests.support.outputs.small_out.output import SmallOut, make_small_out


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
    ],
)
@pytest.mark.usefixtures("no_ray")
def test_a_language_by_its_name_is_told_its_label(
    setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = posts(tmp_path)
    assert says in told(capsys, 2, "run", path, "--set", 'language.keep=["de", "en"]', "--set", setting)
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
