"""The ring of a rank: what its file holds while it is written, wraps, tears, and where it is none at all."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.recorder.noting import Entries
from trainer.recorder.ring import (
    CallSite,
    RingBuffer,
    RingError,
    RingHeader,
    ranks_of,
    read_ring,
    ring_bytes,
    runs_of,
)

HEADER = RingHeader(
    rank=3, world_size=4, attempt=2, node="n7", pid=99, thread=1234, device="cpu", num_operations=4, num_steps=2,
    wall=1.5,
)  # fmt: skip
SITE = CallSite(
    name="all_reduce", group="loss 5", ranks=((0, 4, 1),), phase="forward", file="trainer/run/step.py", line=7,
    function="train_step",
)  # fmt: skip
OWN, WAITING = tuple(float(at) for at in range(7)), tuple(at / 8 for at in range(7))


@pytest.fixture
def ring(tmp_path: Path) -> RingBuffer:
    return RingBuffer(str(tmp_path / "ring"), HEADER)


def test_what_is_written_is_read_and_what_is_under_way_has_no_exit(ring: RingBuffer) -> None:
    site = ring.add_site(SITE)
    first = ring.entries.begin(site, 5, 1, 24)
    ring.entries.end(first)
    ring.entries.begin(site, 5, 2, -1, 1)
    ring.add_step(5, OWN, WAITING)
    content = read_ring(ring.content())
    assert content.header == HEADER
    done, open_ = content.operations
    assert (done.number, done.site, done.step, done.group_number, done.size, done.peer) == (
        1,
        SITE,
        5,
        1,
        24,
        -1,
    )
    assert done.exit is not None and done.exit >= done.enter
    assert (open_.exit, open_.size, open_.peer, open_.group_number) == (None, -1, 1, 2)
    assert [(step.step, step.own, step.waiting) for step in content.steps] == [(5, OWN, WAITING)]


def test_the_file_itself_has_it_whatever_becomes_of_the_process(ring: RingBuffer) -> None:
    ring.entries.begin(ring.add_site(SITE), 5, 1, 24)
    assert read_ring(Path(ring.path).read_bytes()).operations[0].site == SITE


def test_the_last_ones_stay_and_an_end_that_comes_too_late_changes_nothing(ring: RingBuffer) -> None:
    site = ring.add_site(SITE)
    numbers = [ring.entries.begin(site, step, step, 8) for step in range(1, 11)]
    for step in range(5):
        ring.add_step(step, OWN, WAITING)
    ring.entries.end(numbers[0])
    content = read_ring(ring.content())
    assert [(each.number, each.step, each.exit) for each in content.operations] == [
        (7, 7, None), (8, 8, None), (9, 9, None), (10, 10, None),
    ]  # fmt: skip
    assert [step.step for step in content.steps] == [3, 4]


@pytest.mark.parametrize(
    ("at", "capacity"), [(0, 3), (64, 2), (100, 1), (-8, 1), (0, 0), (0, 1 << 58), (192, 1)]
)
def test_operations_are_never_written_outside_of_the_file(at: int, capacity: int) -> None:
    with mmap.mmap(-1, 128) as memory, pytest.raises(ValueError, match="do not fit into 128 bytes"):
        Entries(memory, at, capacity)


def test_a_site_for_which_there_is_no_room_has_no_name_and_ends_nothing(ring: RingBuffer) -> None:
    for line in range(1000):
        number = ring.entries.begin(ring.add_site(dataclasses.replace(SITE, line=line)), 0, line, 8)
        ring.entries.end(number)
    assert read_ring(ring.content()).operations[-1].site.name == "other operation"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with"),
        (b"PK something else", "begins with"),
        (b"sluice ring 1\n{not json", "not a ring of this release"),
        (b'sluice ring 1\n{"rank": 1}', "not a ring of this release"),
    ],
)
def test_another_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(RingError, match=message):
        read_ring(data)


def test_a_file_that_was_cut_is_refused_with_both_sizes(ring: RingBuffer) -> None:
    data = ring.content()
    with pytest.raises(RingError, match=f"has {len(data) - 8} bytes, its header says {len(data)}"):
        read_ring(data[:-8])


def test_the_file_is_as_large_as_the_recipe_says(ring: RingBuffer) -> None:
    assert Path(ring.path).stat().st_size == ring_bytes(4, 2) == 4096 + 65536 + 4 * 64 + 2 * 128


@given(st.sets(st.integers(0, 200), min_size=1))
def test_runs_are_the_ranks_again(ranks: set[int]) -> None:
    assert ranks_of(runs_of(sorted(ranks))) == sorted(ranks)


def test_the_ranks_of_a_meshs_dimension_are_one_run() -> None:
    assert runs_of(range(16_384)) == ((0, 16_384, 1),)
    assert runs_of([3, 11, 19, 27]) == ((3, 28, 8),)
