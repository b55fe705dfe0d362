"""Submissions: what is shipped and under which id, and what is refused. (On a real cluster:
test_cluster.py.)"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lineage.recipe import RecipeError
from lineage.storage.folder import object_store_settings
from pipeline.cli.commands import parse_command
from pipeline.cli.main import main
from pipeline.cli.submit import configure, connect, next_calls, split_command
from pipeline.cluster.job_client import OUTPUT, ClusterError, ClusterJob, _job, find_token
from pipeline.cluster.session import what_starts
from pipeline.jobs.settings import SETTINGS, take_settings
from pipeline.jobs.submission import Submission, make_submission, project_files, write_package
from tests.support.outputs.runs import recipe, write_recipe

IN = "s3://bucket/in/*.jsonl"
OUT = "s3://bucket/out"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit_run(*arguments: str, **tables: dict[str, Any]) -> Submission:
    """The submission of a data recipe in the working folder, without the project's code."""
    write_recipe(Path("recipe.toml"), recipe(OUT, {"web": (IN,)}, **tables))
    return make_submission(["run", "recipe.toml", *arguments], parse_command, ship_project=False)


def shipped_recipe(submission: Submission) -> dict[str, Any]:
    return tomllib.loads(submission.files[submission.arguments[1]].decode())


def test_the_same_submission_has_the_same_id(here: Path) -> None:
    assert submit_run().id == submit_run().id
    assert submit_run().id.startswith("sluice-run-")


@pytest.mark.parametrize("change", ["recipe", "override", "argument", "shipped file"])
def test_another_submission_has_another_id(here: Path, change: str) -> None:
    (here / "hosts.txt").write_text("spam.example\n")
    before = submit_run(url={"block_hosts": ["hosts.txt"]})
    if change == "shipped file":
        (here / "hosts.txt").write_text("ham.example\n")
    after = submit_run(
        *{"override": ["--set", "run.seed=7"], "argument": ["--json"]}.get(change, []),
        url={"block_hosts": ["hosts.txt"]},
        **({"limits": {"max_bad_records": 0.5}} if change == "recipe" else {}),
    )
    assert before.id != after.id


def test_a_change_of_the_shipped_code_changes_the_id(here: Path) -> None:
    with_code = make_submission(["verify", OUT], parse_command, ship_project=True)
    changed = Submission(
        command="verify",
        arguments=with_code.arguments,
        project=with_code.project,
        files={**with_code.files, "pipeline/phases/phase.py": b"pass"},
    )
    assert (
        changed.id != with_code.id != make_submission(["verify", OUT], parse_command, ship_project=False).id
    )


def test_overrides_are_applied_before_shipping_and_leave_the_command(here: Path) -> None:
    submission = submit_run("--set", "run.seed=7", "--set=source.0.limit=2", "--json")
    assert submission.arguments == ("run", "recipe.toml", "--json")
    plain = shipped_recipe(submission)
    assert (plain["run"]["seed"], plain["source"][0]["limit"]) == (7, 2)


def test_the_job_joins_the_cluster_that_it_runs_on(here: Path) -> None:
    assert shipped_recipe(submit_run(ray={"address": "local"}))["ray"]["address"] == "auto"


@pytest.mark.parametrize(
    "place",
    [
        "https://me:hunter2@host/a.jsonl",
        "https://hunter2@host/a.jsonl",
        "https://host/a.jsonl?X-Amz-Signature=hunter2&x=1",
        "https://host/a.jsonl?x=${SLUICE_SECRET_A}&token=hunter2",
    ],
)
def test_credentials_of_a_recipe_are_not_shipped_but_named(here: Path, place: str) -> None:
    write_recipe(Path("recipe.toml"), recipe(OUT, {"web": (IN, place)}))
    with pytest.raises(
        RecipeError, match=r"source\.0\.inputs\.1 .*holds credentials.*\$\{SLUICE_SECRET_LOGIN\}"
    ) as refused:
        make_submission(["run", "recipe.toml"], parse_command, ship_project=False)
    assert "hunter2" not in str(refused.value)


def test_credentials_in_an_option_are_not_shipped_either(here: Path) -> None:
    call = ["scan", OUT, "--against", "https://me:hunter2@host/b.jsonl", "--to", f"{OUT}.json"]
    with pytest.raises(RecipeError, match=r"--against .*holds credentials") as refused:
        make_submission(call, parse_command, ship_project=False)
    assert "hunter2" not in str(refused.value)


def test_credentials_of_a_training_recipe_are_not_shipped(here: Path) -> None:
    table = {
        "data": OUT,
        "output": f"{OUT}-t",
        "model": "debug",
        "seq_len": 64,
        "global_batch": 8,
        "steps": 3,
    }
    table |= {"init_from": "https://me:hunter2@host/model"}
    write_recipe(Path("train.toml"), {"run": {"name": "t"}, "train": table})
    with pytest.raises(RecipeError, match=r"train\.init_from .*holds credentials"):
        make_submission(["train", "train.toml"], parse_command, ship_project=False)


def test_references_to_credentials_are_shipped_as_they_stand(here: Path) -> None:
    places = (
        "https://${SLUICE_SECRET_A}@host/a.jsonl",
        "https://me:${SLUICE_SECRET_B}@host/b.jsonl?${SLUICE_SECRET_C}",
    )
    write_recipe(Path("recipe.toml"), recipe(OUT, {"web": places}))
    submission = make_submission(["run", "recipe.toml"], parse_command, ship_project=False)
    assert tuple(shipped_recipe(submission)["source"][0]["inputs"]) == places


def test_a_file_below_the_working_folder_keeps_its_name(here: Path) -> None:
    (here / "lists").mkdir()
    (here / "lists" / "hosts.txt").write_text("spam.example\n")
    submission = submit_run(url={"block_hosts": ["lists/hosts.txt"]})
    assert submission.files["lists/hosts.txt"] == b"spam.example\n"
    assert shipped_recipe(submission)["url"]["block_hosts"] == ["lists/hosts.txt"]


def test_a_file_elsewhere_is_renamed_in_the_recipe_and_in_the_command(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "words.txt"
    elsewhere.write_text('{"text": "casino"}\n')
    submission = submit_run(url={"block_words": [str(elsewhere)]})
    (name,) = shipped_recipe(submission)["url"]["block_words"]
    assert Path(name).name == "words.txt"  # of a tokenizer the name is a part of the result
    assert submission.files[name] == elsewhere.read_bytes()
    assert str(elsewhere) not in submission.files[submission.arguments[1]].decode()
    scan = make_submission(
        ["scan", OUT, f"--against={elsewhere}", "--to", f"{OUT}.json"], parse_command, ship_project=False
    )
    assert scan.arguments == ("scan", OUT, f"--against={name}", "--to", f"{OUT}.json")


def test_the_shipped_project_holds_what_its_packages_import() -> None:
    files = project_files()
    assert {"pipeline/on_cluster.py", "lineage/ids.py", "stages/chain.py", "trainer/order.py"} <= files.keys()
    assert "pipeline/report/report.html" in files
    assert not [name for name in files if "__pycache__" in name or name.startswith("tests")]
    assert [name for name in files if name.endswith(".dist-info/METADATA")]


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"run": {"output": "out"}}, "run.output"),
        ({"dedup": {"against": ["earlier"]}}, "dedup.against"),
        ({"purges": {"honour": ["earlier"]}}, "purges.honour"),
        ({"url": {"block_hosts": ["missing.txt"]}}, "missing.txt"),
    ],
)
def test_a_place_that_the_cluster_cannot_see_is_refused(
    here: Path, tables: dict[str, Any], named: str
) -> None:
    with pytest.raises(RecipeError, match=named):
        submit_run(**tables)


def test_a_run_from_parsed_texts_is_submitted_with_the_output_that_it_starts_from(here: Path) -> None:
    path = write_recipe(here / "recipe.toml", recipe(OUT, {"web": ("s3://bucket/*.warc.gz",)}))
    words = ["run", str(path), "--from", "s3://bucket/kept"]
    assert make_submission(words, parse_command, ship_project=False).arguments[-2:] == (
        "--from",
        "s3://bucket/kept",
    )
    with pytest.raises(RecipeError, match="--from = 'kept' is relative to this folder"):
        make_submission(["run", str(path), "--from", "kept"], parse_command, ship_project=False)


def test_a_training_recipe_is_checked_as_well(here: Path) -> None:
    table = {"data": OUT, "output": "out", "model": "debug", "seq_len": 64, "global_batch": 4, "steps": 2}
    write_recipe(Path("train.toml"), {"run": {"name": "t"}, "train": table})
    with pytest.raises(RecipeError, match=r"train\.output = 'out' is relative"):
        make_submission(["train", "train.toml"], parse_command, ship_project=False)
    submission = make_submission(
        ["train", "train.toml", "--set", f"train.output={OUT}-t"], parse_command, ship_project=False
    )
    assert shipped_recipe(submission)["train"]["output"] == f"{OUT}-t"


def write_mix_recipe(**mix: Any) -> None:
    table = {
        "data": OUT,
        "output": f"{OUT}-t",
        "model": "debug",
        "seq_len": 64,
        "global_batch": 4,
        "steps": 2,
    }
    write_recipe(Path("train.toml"), {"run": {"name": "t"}, "train": table, "mix": mix})


def test_an_ablation_is_shipped_with_its_recipe_and_the_files_that_it_names(
    here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = tmp_path_factory.mktemp("models") / "proxy.json"
    model.write_text("{}")
    write_mix_recipe(proxy={"model": str(model)})
    submission = make_submission(
        ["mix", "run", "train.toml", "--set", "mix.runs=7", "--json"], parse_command, ship_project=False
    )
    assert submission.arguments == ("mix", "run", "train.toml", "--json")
    assert submission.id.startswith("sluice-mix-")
    shipped = tomllib.loads(submission.files["train.toml"].decode())
    assert (shipped["mix"]["runs"], shipped["ray"]["address"]) == (7, "auto")
    assert submission.files[shipped["mix"]["proxy"]["model"]] == b"{}"


def test_what_an_ablation_is_compared_with_is_shipped_and_what_it_writes_must_last(here: Path) -> None:
    write_mix_recipe()
    (here / "target.jsonl").write_text('{"text": "like this"}\n')
    dsir = ["mix", "dsir", "train.toml", "--against", "target.jsonl", "--keep", "3", "--to"]
    assert "target.jsonl" in make_submission([*dsir, f"{OUT}.jsonl"], parse_command, ship_project=False).files
    with pytest.raises(RecipeError, match=r"--to = 'chosen\.jsonl' is relative"):
        make_submission([*dsir, "chosen.jsonl"], parse_command, ship_project=False)


def test_published_tables_of_a_fit_are_shipped(here: Path) -> None:
    tables = [
        word
        for name in ("weights", "losses", "test-weights", "test-losses")
        for word in (f"--{name}", f"{name}.csv")
    ]
    for name in tables[1::2]:
        (here / name).write_text(name)
    fit = ["mix", "fit", *tables, "--target", "web", "--model", "log_linear"]
    submission = make_submission(fit, parse_command, ship_project=False)
    assert submission.files == {name: name.encode() for name in tables[1::2]}
    assert submission.arguments == tuple(fit)


@pytest.mark.parametrize(
    "command",
    [
        ["scan", OUT, "--against", "b.jsonl", "--to", f"{OUT}.json"],
        ["purge", OUT, "--host", "spam.example", "--reason", "asked to", "--by", "me", "--apply"],
        ["report", OUT],
        ["verify", OUT],
    ],
)
def test_a_command_on_an_output_goes_as_it_is(here: Path, command: list[str]) -> None:
    (here / "b.jsonl").write_text('{"text": "a leaked question"}\n')
    submission = make_submission(command, parse_command, ship_project=False)
    assert submission.arguments == tuple(command)
    assert submission.entrypoint.startswith(f"python -m pipeline.on_cluster {command[0]} {OUT}")


def test_steps_of_ones_own_travel_with_their_package_and_the_files_that_they_are_given(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (here / "mine_filters.py").write_text("def keep(document):\n    return document\n")
    (here / "mine_models" / "deep").mkdir(parents=True)
    (here / "mine_models" / "__init__.py").write_text("")
    (here / "mine_models" / "words.txt").write_text("a\n")
    (here / "mine_models" / "deep" / "__init__.py").write_text("class Toxic:\n    pass\n")
    weights = tmp_path_factory.mktemp("elsewhere") / "weights.bin"
    weights.write_bytes(b"\x01")
    plain = recipe(OUT, {"web": (IN,)})
    plain["source"][0]["steps"] = ["parse", "mine_filters:keep", "json:loads", "mine_models.deep:Toxic"]
    plain["step"] = [{"name": "mine_models.deep:Toxic", "files": {"weights": str(weights)}}]
    write_recipe(Path("recipe.toml"), plain)
    submission = make_submission(["run", "recipe.toml"], parse_command, ship_project=False)
    own = (
        "mine_filters.py",
        "mine_models/__init__.py",
        "mine_models/deep/__init__.py",
        "mine_models/words.txt",
    )
    [shipped] = shipped_recipe(submission)["step"][0]["files"].values()
    assert shipped.startswith("files/") and shipped.endswith("/weights.bin")
    assert submission.files.keys() == {*own, shipped, "recipe.toml"}
    assert submission.files["mine_models/words.txt"] == b"a\n"


def test_a_step_that_is_not_there_is_refused_before_anything_is_sent(here: Path) -> None:
    plain = recipe(OUT, {"web": (IN,)})
    plain["source"][0]["steps"] = ["parse", "mine:step"]
    write_recipe(Path("recipe.toml"), plain)
    with pytest.raises(RecipeError, match="mine:step"):
        make_submission(["run", "recipe.toml"], parse_command, ship_project=False)


@pytest.mark.parametrize("below", [True, False])
def test_the_folder_of_an_encoder_travels_whole_under_one_name(
    here: Path, tmp_path_factory: pytest.TempPathFactory, below: bool
) -> None:
    folder = here / "edu" if below else tmp_path_factory.mktemp("models") / "edu"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin"):
        (folder / name).write_text(name)
    plain = recipe(OUT, {"web": (IN,)})
    table = {"name": "edu", "model": "edu" if below else str(folder), "label": "high", "threshold": 0.5}
    write_recipe(Path("recipe.toml"), plain | {"classifier": [table]})
    submission = make_submission(["run", "recipe.toml"], parse_command, ship_project=False)
    name = shipped_recipe(submission)["classifier"][0]["model"]
    assert (name == "edu") == below
    assert {
        f"{name}/config.json",
        f"{name}/model.safetensors",
        f"{name}/tokenizer.json",
    } < submission.files.keys()
    assert submission.files[f"{name}/model.safetensors"] == b"model.safetensors"
    assert not [file for file in submission.files if file.endswith(".bin")]  # may hold code, and is not read


def test_other_commands_are_refused(here: Path) -> None:
    with pytest.raises(RecipeError, match="cannot submit 'demo': expected one of run"):
        make_submission(["demo"], parse_command, ship_project=False)
    with pytest.raises(RecipeError, match="it reads s3:// from here, so call sluice trace itself"):
        make_submission(["trace", "s3://bucket/out", "--doc", "0" * 32], parse_command, ship_project=False)


def test_a_file_of_ours_is_not_overwritten_by_one_that_is_shipped(here: Path) -> None:
    (here / "pipeline").mkdir()
    (here / "pipeline" / "plan.py").write_text("spam.example\n")
    write_recipe(Path("r.toml"), recipe(OUT, {"web": (IN,)}, url={"block_hosts": ["pipeline/plan.py"]}))
    with pytest.raises(RecipeError, match=r"pipeline/plan\.py would overwrite"):
        make_submission(["run", "r.toml"], parse_command, ship_project=True)


def test_keys_travel_in_a_file_of_their_own_and_nowhere_else(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {"AWS_SECRET_ACCESS_KEY": "hunter2", "AZURE_STORAGE_ACCOUNT_NAME": "ours"}
    settings = object_store_settings({**ours, "RAY_AUTH_TOKEN": "token", "HOME": "/root"})
    assert settings == ours
    submission = submit_run()
    write_package(submission, settings, here / "package")
    holding = [
        path for path in (here / "package").rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()
    ]
    assert holding == [here / "package" / SETTINGS]
    assert holding[0].stat().st_mode & 0o077 == 0
    assert "hunter2" not in submission.entrypoint
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    monkeypatch.chdir(here / "package")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    take_settings()
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "hunter2"


def test_the_token_is_found_where_ray_looks(here: Path) -> None:
    (here / ".ray").mkdir()
    (here / ".ray" / "auth_token").write_text("from home\n")
    (here / "named").write_text("from file\n")
    assert find_token({}, here) == "from home"
    assert find_token({"RAY_AUTH_TOKEN_PATH": str(here / "named")}, here) == "from file"
    assert (
        find_token({"RAY_AUTH_TOKEN": "given", "RAY_AUTH_TOKEN_PATH": str(here / "named")}, here) == "given"
    )
    assert find_token({}, here / "empty") is None
    with pytest.raises(ClusterError, match="RAY_AUTH_TOKEN_PATH names /nowhere"):
        find_token({"RAY_AUTH_TOKEN_PATH": "/nowhere"}, here)


@pytest.mark.parametrize(
    ("status", "exit_code", "code"),
    [("SUCCEEDED", 0, 0), ("FAILED", 2, 2), ("FAILED", None, 1), ("FAILED", -9, 1), ("STOPPED", 0, 1)],
)
def test_the_exit_code_is_the_commands_own_or_1_where_it_has_none(
    status: str, exit_code: int | None, code: int
) -> None:
    assert ClusterJob(id="j", status=status, command="", message="", exit_code=exit_code).code == code


def test_options_of_submit_may_stand_before_and_behind_the_command() -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    options = parser.parse_args(["--detach", "verify", OUT, "--address", "http://h:1", "--", "--json"])
    assert split_command(options) == ["verify", OUT, "--json"]
    assert (options.address, options.detach, options.json) == ("http://h:1", True, False)


def test_an_address_that_is_no_url_and_a_cluster_that_is_not_there_are_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", "--address", "127.0.0.1:8265"]) == 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert (
            main(["jobs", "--address", address]) == 1
        )  # bound all the while, so that nobody can come to listen
    told = capsys.readouterr().err
    assert "expected the URL of the dashboard" in told
    assert f"no Ray cluster answers at {address}" in told


class FakeClient:
    """A cluster that has these jobs."""

    def __init__(self, *jobs: ClusterJob) -> None:
        self._jobs = list(jobs)

    def jobs(self) -> list[ClusterJob]:
        return self._jobs


def test_jobs_are_listed_with_start_duration_state_and_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    details = SimpleNamespace(
        submission_id="sluice-run-0",
        status="SUCCEEDED",
        entrypoint="python -m pipeline.on_cluster run r.toml",
        message="",
        driver_exit_code=0,
        start_time=1_790_000_000_123,
        end_time=1_790_003_725_123,
        metadata={OUTPUT: "s3://bucket/out"},
    )
    waiting = {**vars(details), "submission_id": "sluice-run-1", "status": "PENDING", "metadata": None}
    waiting |= {"start_time": None, "end_time": None}
    client = FakeClient(_job(details), _job(SimpleNamespace(**waiting)))
    monkeypatch.setattr("pipeline.cli.jobs.connect", lambda address: client)
    monkeypatch.setenv("COLUMNS", "200")  # a narrower page breaks lines
    assert main(["jobs"]) == 0
    head, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["job", "status", "started", "(UTC)", "took", "output", "command"]
    started = "2026-09-21T14:13:20Z"
    assert first == [
        "sluice-run-0",
        "SUCCEEDED",
        started,
        "1:02:05",
        "s3://bucket/out",
        "sluice",
        "run",
        "r.toml",
    ]
    assert second == ["sluice-run-1", "PENDING", "sluice", "run", "r.toml"]
    assert main(["jobs", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(job["started_at"], job["seconds"], job["output"]) for job in told] == [
        (started, 3725.0, "s3://bucket/out"),
        (None, None, None),
    ]


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (["verify", OUT], OUT),
        (["export", OUT, "--format", "hf", "--to", "s3://bucket/copy"], "s3://bucket/copy"),
    ],
)
def test_a_submission_names_the_place_that_it_writes_to(here: Path, command: list[str], place: str) -> None:
    assert make_submission(command, parse_command, ship_project=False).output == place


def test_the_address_is_that_of_ray_address_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("pipeline.cluster.job_client.JobClient", lambda address, token: asked.append(address))
    monkeypatch.setenv("RAY_ADDRESS", "http://of-the-shell:8265")
    connect(None)
    connect("http://given:8265")
    assert asked == ["http://of-the-shell:8265", "http://given:8265"]
    monkeypatch.setenv("RAY_ADDRESS", "ray://of-the-shell:10001")
    assert main(["jobs"]) == 2
    assert (
        "RAY_ADDRESS ray://of-the-shell:10001: expected the URL of the dashboard" in capsys.readouterr().err
    )
    monkeypatch.delenv("RAY_ADDRESS")
    assert main(["jobs"]) == 2
    assert "--address is missing, and RAY_ADDRESS is not set" in capsys.readouterr().err


def test_the_calls_behind_a_detached_job_can_be_made() -> None:
    for address in (None, "http://h:1"):
        for line in next_calls(address, "sluice-run-0").splitlines():
            options = parse_command("jobs", shlex.split(line)[2:])
            assert options.address == address
            assert "sluice-run-0" in (options.logs, options.stop)


def test_a_session_says_whether_it_starts_a_ray_or_joins_one() -> None:
    assert what_starts("local") == "starting Ray, which takes some seconds"
    assert what_starts("head:6379") == "joining the cluster at head:6379"
    assert what_starts("auto") == "joining the cluster"
