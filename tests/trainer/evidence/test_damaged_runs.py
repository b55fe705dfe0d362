"""A run that went back before damaged checkpoints: its steps are explained, it forgets, and it is certified."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.small_out.output import SmallOut
from tests.support.training.forgotten import Trained, copy_out
from tests.trainer.checkpoint.test_damage import flipped, piece
from trainer.attempts import attempts
from trainer.recovery.forget import forget


def checkpoint(trained: Trained, name: str) -> Path:
    return trained.run.output / "checkpoints" / name


def test_why_forget_and_certify_of_a_run_whose_checkpoints_were_damaged(
    small: SmallOut, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Trained(small=small, folder=tmp_path, changes={"workers": 2, "record_losses": True})
    copy_out(small, tmp_path)
    whole = replace(trained, name="whole")
    whole.run.start()
    trained.run.start_and_kill(7)
    flipped(piece(checkpoint(trained, "step-00000006.attempt-1")))
    (checkpoint(trained, "step-00000004.attempt-1") / "complete.json").write_bytes(b"")
    assert trained.run.start().finished
    assert trained.run.losses() == whole.run.losses()
    output = Folder(str(trained.run.output))
    assert attempts(output)[-1].first_step == 2

    flipped(piece(checkpoint(trained, "step-00000008.attempt-2"), 1))
    for step, begins in ((5, "step-00000004.attempt-2"), (9, "step-00000006.attempt-2")):
        assert main(["train", "why", output.url, "--step", str(step), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["verdict"]["cause"], found["replayed_from"]) == ("data", begins)
        assert len(found["damaged"]) == (step == 9)

    purge_id = trained.purge(trained.record_first_read_in(range(7, 8)))
    assert forget(trained.run.recipe(), ["all"], restart=False).trains
    flipped(piece(checkpoint(trained, "step-00000006.attempt-2")))
    assert trained.run.start().finished
    assert attempts(output)[-1].first_step == 4
    fresh = replace(trained, name="fresh")
    fresh.run.start()
    cert = str(tmp_path / "cert.json")
    assert main(["certify", output.url, "--to", cert]) == 0
    assert main(["certify", "--check", cert, output.url, "--against", str(fresh.run.output)]) == 0
    shown = capsys.readouterr().out
    assert purge_id in shown
    assert "equal: " in shown and "NO " not in shown
    assert "damaged" in Path(cert).read_text()
