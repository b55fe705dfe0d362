"""What the record of batches says of single rows, read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lineage.storage.folder import Folder
from trainer.attempts import claim
from trainer.provenance.batches import BatchRecorder, RecordedStep, read_row_losses


def rows(step: int) -> RecordedStep:
    """Two rows of a step."""
    numbers = {"epoch": [0, 0], "sequence": [0, 1], "shard": [0, 0], "start": [0, 8], "num_tokens": [8, 8]}
    names = {"source": ["web", "web"], "tokens_hash": ["0" * 32, "1" * 32]}
    return RecordedStep(
        step=step, rows=[0, 1], columns={"step": [step, step], "row": [0, 1], **numbers, **names}
    )


def record(output: Folder, attempt: int, steps: range, *, with_losses: bool) -> None:
    recorder = BatchRecorder(output, "run", attempt, 0, with_losses=with_losses)
    for step in steps:
        recorder.add(rows(step))
        if with_losses and step != 3:  # which was skipped unseen
            recorder.note_losses(step, np.array([[6.0 + step, 1.0], [2.0, 0.0]]))
    recorder.flush()


def test_the_loss_of_a_row_is_a_mean_over_its_labels_and_absent_where_none_is_recorded(
    tmp_path: Path,
) -> None:
    output = Folder(str(tmp_path))
    record(output, 1, range(4), with_losses=True)
    record(output, 2, range(4, 8), with_losses=True)
    record(output, 3, range(8, 9), with_losses=False)
    wanted = {(1, 2, 0), (1, 2, 1), (1, 3, 0), (2, 5, 0), (1, 5, 0), (3, 8, 0)}
    assert read_row_losses(output, wanted, 10) == {(1, 2, 0): 4.0, (2, 5, 0): 5.5}
    assert read_row_losses(output, wanted, 1) == {(1, 2, 0): 4.0}, "of the files that may be opened"
    assert read_row_losses(Folder(str(tmp_path / "none")), wanted, 10) == {}


def test_a_process_that_was_given_up_does_not_write_what_was_written_for_it(tmp_path: Path) -> None:
    output = Folder(str(tmp_path))
    given_up, newest = BatchRecorder(output, "run", 1, 1), BatchRecorder(output, "run", 2, 1)
    for recorder in (given_up, newest):
        recorder.add(rows(0))
    for number in (1, 2):
        assert claim(output) == number
    given_up.close()
    assert output.names("batches") == []
    newest.close()
    assert output.names("batches") == ["batches/batches-00002-00001-000000000-000000001.parquet"]
