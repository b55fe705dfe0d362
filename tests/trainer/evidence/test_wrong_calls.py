"""Wrong calls that go back, forget, certify or ask why: a sentence each, the right exit code, nothing
changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lineage.recipe import as_toml
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import Trained, copy_out
from trainer.attempts import attempts
from trainer.evidence.certificate_file import FORMAT
from trainer.recovery.rollbacks import rollbacks


@pytest.fixture(scope="module")
def trained(small: SmallOut, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run that has read what is purged since, in steps 5 and on, and its recipe beside it."""
    mine = Trained(small=small, folder=tmp_path_factory.mktemp("wrong"))
    copy_out(small, mine.folder)
    mine.run.start()
    mine.purge(mine.record_first_read_in(range(5, 6)))
    (mine.folder / "recipe.toml").write_text(as_toml(mine.run.recipe()))
    return mine


@pytest.fixture
def call(trained: Trained, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    """A command line, in which names in {} stand for places; gives its exit code and its last line on
    stderr."""
    places = {
        "recipe": trained.folder / "recipe.toml",
        "run": trained.run.output,
        "out": trained.out.url,
        "none": trained.folder / "none",
        "cert": trained.folder / "cert.json",
    }

    def calls(line: str) -> tuple[int, str]:
        code = main([word.format(**places) for word in line.split()])
        return code, capsys.readouterr().err.splitlines()[-1]

    yield calls
    assert rollbacks(Folder(str(trained.run.output))) == ()
    assert len(attempts(Folder(str(trained.run.output)))) == 1


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("train {recipe} --forget x", "no purge 'x' in"),
        ("train {recipe} --forget all x", "no purge 'x' in"),
        ("train {recipe} --from-step 99", "it is the run's newest, from which sluice train goes on"),
        ("train {recipe} --from-step 5", "--from-step 4 goes back to that"),
        ("train {recipe} --restart", "--restart goes with --forget alone"),
        ("train {recipe} --from-step 4 --restart", "--restart goes with --forget alone"),
        ("train {recipe} --forget all --set train.seed=9", "train.seed is 9 now and was 0"),
        (
            "train {recipe} --forget all --set train.optimizer.lr=1e-4",
            "train.optimizer.lr is 0.0001 now and was 0.003",
        ),
        ("train {recipe} --forget all --set train.steps=20", "train.steps is 20 now and was 10"),
        (
            "train {recipe} --forget all --restart --set train.skip=[[1,2]]",
            "train.skip is [[1, 2]] now and was []",
        ),
        ("train {recipe} --from-step 4 --set train.global_batch=8", "train.global_batch is 8 now and was 4"),
        ("train {recipe} --forget all --set train.output={none}", "give this run another run.name"),
        ("train {recipe} --forget all --set run.name=z", "give that run.name to go on with it"),
        ("train why {run} --step 10", "--step 10: steps 0 to 9 are recorded"),
        ("train why {none} --step 1", "is not the output of a training run"),
        ("certify {run} --purge x --to {cert}", "no purge 'x' in"),
        ("certify {none} --to {cert}", "is not the output of a training run"),
        ("certify {out} --to {cert}", "is not the output of a training run"),
        ("certify {run} --check {none}", "cannot be read"),
        ("certify {run} --against {none}", "it has no checkpoint of step 10"),
    ],
)
def test_a_wrong_call_ends_with_2_and_a_sentence(
    line: str, sentence: str, call: Callable[..., tuple[int, str]]
) -> None:
    code, told = call(line)
    assert (code, sentence in told) == (2, True), told


def test_steps_and_purges_go_not_together(call: Callable[..., tuple[int, str]]) -> None:
    with pytest.raises(SystemExit) as ended:
        call("train {recipe} --from-step 4 --forget all")
    assert ended.value.code == 2


def test_a_model_that_still_holds_readings_ends_with_1(call: Callable[..., tuple[int, str]]) -> None:
    code, told = call("certify {run} --to {cert}")
    assert (code, "cannot be certified: it read documents of purge" in told) == (1, True), told


def test_where_nothing_is_left_to_go_back_from_it_is_said(
    trained: Trained, call: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    def without(path: Path, *lines: str) -> list[tuple[int, str]]:
        shutil.move(path, tmp_path / "away")
        try:
            return [call(line) for line in lines]
        finally:
            shutil.move(tmp_path / "away", path)

    forget, back, certify = (
        "train {recipe} --forget all",
        "train {recipe} --from-step 4",
        "certify {run} --to {cert}",
    )
    told = without(trained.run.output / "checkpoints", forget, back, certify)
    assert [code for code, _ in told] == [2, 2, 2]
    assert (
        "first read in step 5, and no whole checkpoint before it is kept: a new run is the only way"
        in told[0][1]
    )
    assert "none before it: --from-step 0 begins again from the first weights" in told[1][1]
    assert "has no checkpoint in" in told[2][1]
    told = without(trained.run.output, forget, f"{forget} --restart", back)
    assert [code for code, _ in told] == [2, 2, 2]
    assert "its output was moved or deleted; put it back to" in told[0][1] and told[1] == told[0]
    assert "holds no attempt of a run" in told[2][1]
    told = without(Path(trained.out.url), forget, back, "train why {run} --step 3", certify)
    assert [code for code, _ in told] == [1, 1, 1, 1]
    assert all("give the output folder" in line or "no index.json" in line for _, line in told)


CERTIFICATE: dict[str, Any] = {
    "format": FORMAT,
    "run": "x",
    "checkpoint": {"name": "x"},
    "purges": [{"purge_id": "x", "out": "x"}],
    "chain": [{"attempt": 1}],
    "init_from": [],
    "not_covered": [],
    "commitment": {"root": "x"},
    "weights": {"digest": "x", "tensors": {}},
    "inexact": [],
    "checksum": "x",
}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is no whole JSON"),
        (json.dumps(CERTIFICATE)[:100].encode(), "it is no whole JSON"),
        (b"\xff{}", "it is no whole JSON"),
        (b"[" * 100_000, "it is no whole JSON"),
        (b"[]", "it has no format"),
        (json.dumps(CERTIFICATE | {"run": 7}).encode(), "run is 7, and no str"),
        (json.dumps(CERTIFICATE | {"checksum": None}).encode(), "checksum is None, and no str"),
        (json.dumps(CERTIFICATE | {"purges": [1]}).encode(), "purges: 1 is no object"),
        (json.dumps(CERTIFICATE | {"purges": {}}).encode(), "purges is no list"),
        (
            json.dumps(CERTIFICATE | {"purges": [{"purge_id": "all", "out": "x"}]}).encode(),
            "all is no purge's id",
        ),
        (json.dumps(CERTIFICATE | {"chain": [{"attempt": "1"}]}).encode(), "attempt is '1', and no int"),
        (json.dumps(CERTIFICATE | {"weights": None}).encode(), "weights: None is no object"),
    ],
)
def test_a_damaged_certificate_ends_with_1_and_a_sentence(
    data: bytes, why: str, trained: Trained, call: Callable[..., tuple[int, str]]
) -> None:
    (trained.folder / "cert.json").write_bytes(data)
    code, told = call("certify {run} --check {cert}")
    assert code == 1
    assert "is no certificate, or a damaged one" in told and why in told


def test_the_certificate_of_another_run_is_told(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    cert = trained.folder / "cert.json"
    cert.write_text(json.dumps(CERTIFICATE))
    assert main(["certify", str(trained.run.output), "--check", str(cert)]) == 1
    assert f"NO   run: it is of the run 'x', and {trained.run.output} holds" in capsys.readouterr().out
    assert main(["certify", trained.out.url, "--check", str(cert)]) == 2
    assert "is not the output of a training run" in capsys.readouterr().err
