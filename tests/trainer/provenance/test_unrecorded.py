"""What a process that died had not written of its batches, and which attempts they belong to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from trainer.attempts import (
    Attempt,
    Claimant,
    FencedOutError,
    begin,
    claim,
    claim_next,
    steps_on_line,
)
from trainer.provenance.batches import unrecorded_steps


def test_the_steps_that_no_file_of_the_rank_tells_of(tmp_path: Path) -> None:
    for attempt, rank, first, end in [(1, 0, 0, 4), (1, 0, 4, 6), (1, 1, 0, 8), (2, 0, 9, 10)]:
        path = tmp_path / f"batches/batches-{attempt:05d}-{rank:05d}-{first:09d}-{end:09d}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    output, line = Folder(str(tmp_path)), [(2, range(8, 11)), (1, range(8))]
    assert unrecorded_steps(output, 0, line) == [(2, range(8, 9)), (2, range(10, 11)), (1, range(6, 8))]
    assert unrecorded_steps(output, 1, line) == [(2, range(8, 11))]
    assert unrecorded_steps(output, 2, [(1, range(3, 3))]) == []


def test_the_line_of_attempts_with_the_steps_that_each_did(tmp_path: Path) -> None:
    output = Folder(str(tmp_path))
    for number, first, parent in [(1, 0, None), (2, 7, 1), (3, 7, 1), (4, 9, 3)]:
        begin(output, Attempt(number=number, first_step=first, parent=parent, began_at=0.0))
    now = Attempt(number=5, first_step=12, parent=4, began_at=0.0)
    assert steps_on_line(output, now, 0) == [(4, range(9, 12)), (3, range(7, 9)), (1, range(7))]
    assert steps_on_line(output, now, 8) == [(4, range(9, 12)), (3, range(8, 9))]


def test_a_number_that_this_start_claimed_and_lost_is_passed_over_and_another_start_ends_it(
    tmp_path: Path,
) -> None:
    output = Folder(str(tmp_path))
    assert claim(output) == 1
    ours = Claimant(launch="ours", generation=1)
    assert claim_next(output, 1, ours) == 2
    assert claim_next(output, 1, ours) == 3
    with pytest.raises(FencedOutError, match=r"attempt 1 of .* has been superseded"):
        claim_next(output, 1, Claimant(launch="theirs", generation=1))
    assert claim(output) == 4
    with pytest.raises(FencedOutError, match=r"attempt 3 of .* has been superseded"):
        claim_next(output, 3, ours)


def test_a_process_that_wakes_up_when_its_place_is_taken_claims_nothing(tmp_path: Path) -> None:
    output = Folder(str(tmp_path))
    first, second = (Claimant(launch="ours", generation=generation) for generation in (0, 1))
    assert claim(output, first) == 1
    assert claim_next(output, 1, second) == 2
    for claims in (partial(claim, output), partial(claim_next, output, 1)):
        with pytest.raises(FencedOutError, match=r"generation 0 .* has been superseded by generation 1"):
            claims(first)
    assert claim(output, Claimant(launch="theirs", generation=0)) == 3
