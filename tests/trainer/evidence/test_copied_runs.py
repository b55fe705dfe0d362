"""A proof is about the output that a call names: copied, moved, or behind a link."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from pipeline.cli.training import why as cli_why
from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import Trained, copy_out
from tests.support.training.replayed import replays
from trainer.checkpoint.store import CheckpointError, check_owner, claim_folder
from trainer.evidence.replayed_step import ReplayedStep, step_to_replay
from trainer.evidence.why import WhyStep, explain_step
from trainer.huggingface.export import export_run
from trainer.huggingface.model_card import checkpoints_of, read_card
from trainer.provenance.setup import read_setup
from trainer.recovery.forget import forget


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """A run that forgot a document, and a copy of its output from before, which read it."""

    trained: Trained
    purge_id: str

    @property
    def run(self) -> Path:
        return self.trained.run.output

    @property
    def copy(self) -> Path:
        return self.trained.folder / "run.copy"


@pytest.fixture(scope="module")
def made(small: SmallOut, tmp_path_factory: pytest.TempPathFactory) -> Copies:
    trained = Trained(small=small, folder=tmp_path_factory.mktemp("copies"))
    copy_out(small, trained.folder)
    trained.run.start()
    record = trained.record_first_read_in(range(5, 6))
    copies = Copies(trained=trained, purge_id="")
    shutil.copytree(copies.run, copies.copy)
    copies = replace(copies, purge_id=trained.purge(record))
    assert forget(trained.run.recipe(), ["all"], restart=False).trains
    trained.run.start()
    return copies


def in_old_form(output: Path, recorded: Path) -> None:
    """As earlier releases wrote it down: with the path at which the checkpoints lay."""
    card = json.loads((output / "model.json").read_text())
    (output / "model.json").write_text(json.dumps(card | {"checkpoints": str(recorded / "checkpoints")}))


def flip_a_bit(output: Path) -> Path:
    newest = sorted((output / "checkpoints").glob("step-*"))[-1]
    file = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return newest


def test_places_within_an_output_are_recorded_relative_to_it(made: Copies) -> None:
    assert json.loads((made.run / "model.json").read_text())["checkpoints"] == "checkpoints"
    assert read_card(Folder(str(made.copy))).checkpoints == str(made.copy / "checkpoints")


@pytest.mark.parametrize("is_old", [False, True])
def test_a_copy_is_compared_by_its_own_weights(
    made: Copies, is_old: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.copy, copy)
    if is_old:
        in_old_form(copy, made.run)
    for one, other in ((copy, made.run), (made.run, copy)):
        assert main(["certify", str(one), "--against", str(other)]) == 1
        shown = capsys.readouterr().out
        assert "DIFFERENT: " in shown and "tensors differ" in shown
        assert f"read {one}/checkpoints/step-" in shown and f" and {other}/checkpoints/step-" in shown
        assert "\\" not in shown


def spelt_otherwise(run: Path, tmp_path: Path, how: str) -> str:
    link = tmp_path / "link"
    match how:
        case "slash":
            return f"{run}/"
        case "relative":
            return os.path.relpath(run)
        case "url":
            return f"file://{run}"
        case "link":
            link.symlink_to(run)
        case "link above":
            (tmp_path / "above").symlink_to(run.parent)
            return str(tmp_path / "above" / run.name)
        case "linked checkpoints":
            shutil.copytree(run, link, ignore=shutil.ignore_patterns("checkpoints"))
            (link / "checkpoints").symlink_to(run / "checkpoints")
        case "linked files":
            shutil.copytree(run, link)
            for file in (link / "checkpoints").rglob("*.distcp"):
                file.unlink()
                file.symlink_to(run / file.relative_to(link))
    return str(link)


@pytest.mark.parametrize(
    "how",
    [
        "slash",
        "relative",
        "url",
        "link",
        "link above",
        "linked checkpoints",
        "linked files",
    ],
)
def test_two_names_of_one_place_are_no_comparison(
    made: Copies, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = spelt_otherwise(made.run, tmp_path, how)
    for one, two in ((str(made.run), other), (other, str(made.run))):
        assert main(["certify", one, "--against", two]) == 2
        shown = capsys.readouterr()
        assert "equal" not in shown.out and "--against" in shown.err
        assert re.search("itself|hold the same files", shown.err)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_flipped_bit_in_a_copy_is_found(
    made: Copies, is_old: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, cert = tmp_path / "copy", str(tmp_path / "cert.json")
    assert main(["certify", str(made.run), "--to", cert]) == 0
    assert f"read {made.run}/checkpoints/step-" in capsys.readouterr().out
    shutil.copytree(made.run, copy)
    if is_old:
        in_old_form(copy, made.run)
    assert main(["certify", "--check", cert, str(copy)]) == 0, capsys.readouterr().out
    assert f"yes  read {copy}/checkpoints/step-" in capsys.readouterr().out
    flip_a_bit(copy)
    assert main(["certify", "--check", cert, str(copy)]) == 1
    assert "NO   files of the checkpoint: " in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="has other bytes"):
        export_run(Folder(str(copy)), tmp_path / "model")
    assert main(["certify", "--check", cert, str(made.run)]) == 0


def test_a_copy_that_read_what_was_purged_is_not_certified_by_its_original(
    made: Copies, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", str(made.copy), "--to", str(tmp_path / "cert.json")]) == 1
    assert f"it read documents of purge {made.purge_id}" in capsys.readouterr().err


def test_the_facts_of_a_copy_still_have_to_reach_its_checkpoint(
    made: Copies, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.copy, copy)
    lines = (copy / "lineage.jsonl").read_text().splitlines(keepends=True)
    of_segments = [line for line in lines if json.loads(line)["fact"] == "segment"]
    kept = [line for line in lines if line not in of_segments[1:]]
    (copy / "lineage.jsonl").write_text("".join(kept))
    assert main(["certify", str(copy), "--to", str(tmp_path / "cert.json")]) == 1
    assert "that stand there otherwise now" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["moved", "moved, old form", "link"])
def test_a_run_is_read_where_the_call_finds_it(
    made: Copies, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, there, aside = str(tmp_path / "cert.json"), tmp_path / "there", made.run.with_name("aside")
    assert main(["certify", str(made.run), "--to", cert]) == 0
    if way == "link":
        there.symlink_to(made.run)
    else:
        shutil.copytree(made.run, there)
        made.run.rename(aside)
        if "old" in way:
            in_old_form(there, made.run)
    out = made.trained.out.url
    try:
        capsys.readouterr()
        shown = f"{there}/checkpoints/step-00000010.attempt-2"
        assert main(["certify", "--check", cert, str(there)]) == 0, capsys.readouterr().out
        assert f"yes  read {shown}" in capsys.readouterr().out
        assert main(["certify", str(there), "--to", str(tmp_path / "again.json")]) == 0
        assert f"read {shown}" in capsys.readouterr().out
        assert main(["export", str(there), "--to", str(tmp_path / "model")]) == 0
        assert f"read from {shown}" in capsys.readouterr().out
        assert json.loads((tmp_path / "model/sluice.json").read_text())["output"] == str(there)
        assert main(["trace", out, "--runs", str(there)]) == 0
        assert f"in {there}" in capsys.readouterr().out
        assert main(["trace", out, "--runs", str(there), "--run", str(made.run), "--step", "9"]) == 0
        found = explain_step(step_to_replay(Folder(str(there)), 5), replays(tmp_path / "replays"))
        assert (found.output, found.verdict.cause) == (str(there), "data")
        assert found.read[0].startswith(f"{there}/checkpoints/step-00000004.attempt-1")
        assert found.read[1] == out
        if way == "link":
            assert f"(a link to {made.run}/checkpoints/" in found.read[0]
    finally:
        if aside.exists():
            aside.rename(made.run)


@pytest.mark.slow
def test_a_run_that_was_copied_into_a_bucket_is_read_there(
    made: Copies, s3: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, there, out = str(tmp_path / "cert.json"), Folder("s3://runs/there"), made.trained.out.url
    assert main(["certify", str(made.run), "--to", cert]) == 0
    for path in filter(Path.is_file, made.run.rglob("*")):
        there.publish(str(path.relative_to(made.run)), path.read_bytes())
    newest = "checkpoints/step-00000010.attempt-2"
    capsys.readouterr()
    assert main(["certify", "--check", cert, there.url]) == 0, capsys.readouterr().out
    assert f"yes  read {there.at(newest)}" in capsys.readouterr().out
    assert main(["certify", there.url, "--to", str(tmp_path / "again.json")]) == 0
    assert f"read {there.at(newest)}" in capsys.readouterr().out
    assert main(["certify", there.url, "--against", str(made.copy)]) == 1
    shown = capsys.readouterr().out
    assert "DIFFERENT: " in shown and f"read {there.at(newest)}" in shown
    assert main(["certify", there.url, "--against", str(made.run)]) == 0
    assert "equal: " in capsys.readouterr().out
    assert main(["export", there.url, "--to", str(tmp_path / "model")]) == 0
    assert f"read from {there.at(newest)}" in capsys.readouterr().out
    assert main(["trace", out, "--runs", there.url]) == 0
    assert f"in {there.url}" in capsys.readouterr().out
    assert main(["train", "why", there.url, "--step", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["output"], found["verdict"]["cause"]) == (there.url, "data")
    assert found["read"] == [there.at("checkpoints/step-00000004.attempt-1"), out]
    piece = f"{newest}/__0_0.distcp"
    data = bytearray(there.read(piece))
    data[len(data) // 2] ^= 1
    there.publish(piece, bytes(data))
    assert main(["certify", "--check", cert, there.url]) == 1
    assert "NO   files of the checkpoint: " in capsys.readouterr().out
    assert main(["export", there.url, "--to", str(tmp_path / "again")]) == 1
    assert "has other bytes" in capsys.readouterr().err


def test_why_reads_the_weights_of_the_copy_it_is_asked_about(made: Copies, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.run, copy)
    for step in (copy / "checkpoints").glob("step-*"):
        for file in step.glob("*.distcp"):
            file.write_bytes(b"")
    asked = step_to_replay(Folder(str(copy)), 5)
    assert asked.checkpoint is None  # no checkpoint of the copy is whole, whatever its original holds
    assert asked.recipe.train.output == str(copy)


def test_a_record_of_the_recipe_that_was_copied_does_not_go_on_with_the_original(
    made: Copies, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.run.rglob("*")}
    assert main(["train", str(made.copy / "attempts/00001.toml"), "--forget", "all", "--restart"]) == 2
    shown = capsys.readouterr().err
    assert f"recorded by the run with the output {str(made.run)!r}, and lies in {made.copy}" in shown
    assert {path: path.stat().st_mtime_ns for path in made.run.rglob("*")} == before


def test_why_starts_no_ray_for_a_run_that_had_none(made: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[str] = []

    def explained(asked: ReplayedStep) -> WhyStep:
        replayed.append(asked.output.url)
        return explain_step(asked, replays(made.trained.folder / "replays"))

    monkeypatch.setattr(cli_why, "_explained_here", explained)
    monkeypatch.setattr(cli_why, "_explained_on_ray", None)
    setup = read_setup(Folder(str(made.run)), 1)
    assert setup is not None and not setup.on_ray
    assert main(["train", "why", str(made.run), "--step", "1"]) == 0
    assert replayed == [str(made.run)]


def test_data_that_was_moved_is_named_behind_the_output(
    made: Copies, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, moved, out = str(tmp_path / "cert.json"), tmp_path / "moved", Path(made.trained.out.url)
    shutil.copytree(out, moved)
    out.rename(out.with_name("aside"))
    try:
        assert main(["certify", str(made.run), str(moved), "--to", cert]) == 0
        assert f"and the purges of {moved}" in capsys.readouterr().out
        assert main(["certify", "--check", cert, str(made.run), str(moved)]) == 0
        assert f"and the purges of {moved}" in capsys.readouterr().out
    finally:
        out.with_name("aside").rename(out)


def test_checkpoints_apart_are_those_of_one_output(made: Copies, tmp_path: Path) -> None:
    run, apart = tmp_path / "run", tmp_path / "apart"
    shutil.copytree(made.run, run)
    (run / "checkpoints").rename(apart)
    card = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps(card | {"checkpoints": str(apart)}))
    claim_folder(Folder(str(apart)), Folder(str(run)))
    assert checkpoints_of(Folder(str(run)))
    (tmp_path / "link").symlink_to(run)
    check_owner(Folder(str(apart)), Folder(str(tmp_path / "link")))
    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(ValueError, match="holds those of the run with the output"):
        checkpoints_of(Folder(str(tmp_path / "copy")))
    run.rename(tmp_path / "moved")
    assert checkpoints_of(Folder(str(tmp_path / "moved")))


def test_two_outputs_of_one_run_are_traced_one_at_a_time(
    made: Copies, capsys: pytest.CaptureFixture[str]
) -> None:
    out = made.trained.out.url
    assert main(["trace", out, "--runs", str(made.run), str(made.copy)]) == 1
    assert "are both runs called" in capsys.readouterr().err
    assert main(["trace", out, "--runs", str(made.copy), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["output"], [one["last_step"] for one in row["attempts"]]) == (str(made.copy), [9])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"purges": []}, "purges is empty, and a certificate is of at least one purge"),
        ({"format": "sluice certificate 1"}, "another release made it"),
    ],
)
def test_a_certificate_that_says_nothing_or_is_old_is_refused_in_one_sentence(
    made: Copies, change: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert = tmp_path / "cert.json"
    assert main(["certify", str(made.run), "--to", str(cert)]) == 0
    row = json.loads(cert.read_text())
    cert.write_text(json.dumps(row | change))
    capsys.readouterr()
    assert main(["certify", "--check", str(cert), str(made.run)]) == 1
    shown = capsys.readouterr().err
    assert said in shown and "nothing to certify" not in shown
