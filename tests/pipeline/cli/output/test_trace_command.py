"""`sluice trace`: what a wrong option is answered with, and lists that are cut."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pipeline.cli.main import main
from pipeline.cli.output.trace import parse_shard
from tests.support.outputs.recorded_training import record_training
from tests.support.outputs.small_out.output import make_small_out


def test_a_shard_is_a_source_and_a_number() -> None:
    assert parse_shard("web/12") == ("web", 12)


@pytest.mark.parametrize("shard", ["web", "web/", "web/-1", "web/²", "web/١", f"web/{'9' * 5000}"])
def test_a_shard_of_no_number_is_a_wrong_call(
    shard: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_small_out(str(tmp_path / "out"))
    assert main(["trace", str(tmp_path / "out"), "--shard", shard, "--offset", "1"]) == 2
    assert "expected SOURCE/N, for example web/0" in capsys.readouterr().err


@pytest.mark.parametrize("offset", ["²", "١", "-1", "9" * 5000])
def test_an_offset_that_is_no_number_is_a_wrong_call(offset: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trace", "out", "--shard", "web/0", f"--offset={offset}"])
    assert ended.value.code == 2
    assert "expected a whole number, 0 or more" in capsys.readouterr().err


def test_a_host_cut_to_nothing_has_its_count_its_first_and_its_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = make_small_out(str(tmp_path / "out"))
    hosts = Counter(urlsplit(record.url).hostname for record in small.records if record.url)
    host, _ = hosts.most_common(1)[0]

    def told(*arguments: str) -> str:
        assert main(["trace", small.folder.url, "--host", str(host), *arguments]) == 0
        return capsys.readouterr().out

    every = json.loads(told("--json"))["documents"]
    assert len(every) > 3
    cut = json.loads(told("--json", "--limit", "0"))
    assert cut["documents"] == [] and cut["documents_cut"]["count"] == len(every)
    ends = [cut["documents_cut"][end]["doc_id"] for end in ("first", "last")]
    assert ends == [every[0]["doc_id"], every[-1]["doc_id"]]
    for limit in ("0", "1"):
        assert f"… and {len(every) - int(limit)} more of {len(every)}" in told("--limit", limit)


def test_a_step_that_a_run_never_had_is_told_from_one_that_is_not_recorded_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_small_out(str(tmp_path / "out")).folder
    last = record_training(out, str(tmp_path / "run"), "seen", died=True)

    def told(*words: str) -> str:
        assert main(["trace", out.url, "--run", "seen", *words]) == 1
        return capsys.readouterr().err

    assert "sluice trace: step 9999 of run 'seen' is not recorded" in told("--step", "9999")
    never = told("--step", str(last + 1), "--runs", str(tmp_path / "run"))
    assert (
        f"run 'seen' never took a step {last + 1}: its own facts, in {tmp_path}/run, tell of steps 0 to {last}"
        in never
    )
    assert (
        main(["trace", out.url, "--run", "seen", "--step", str(last), "--runs", str(tmp_path / "run")]) == 0
    )
    assert main(["trace", out.url, "--run", "sene", "--step", "0"]) == 1
    assert "'sene'" in capsys.readouterr().err
