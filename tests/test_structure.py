"""The trainer's shape stays within bounds: `python -m tests.support.structure` prints all of its numbers."""

from __future__ import annotations

import pytest

from tests.support.structure import arrows, layers, long_files, rooms

READ_FIRST = ("run", "in_place", "recorder", "health", "processes", "telemetry", "parallel", "options.py")


def test_the_trainer_has_few_rooms_and_few_of_them_import_each_other() -> None:
    assert len(rooms("trainer")) <= 27
    assert len(arrows("trainer")) <= 160


def test_every_room_of_the_trainer_has_a_layer_and_imports_only_lower_ones() -> None:
    height = layers("trainer")
    assert rooms("trainer") == set(height)
    assert [arrow for arrow in arrows("trainer") if height[arrow[0]] <= height[arrow[1]]] == []


@pytest.mark.parametrize("room", READ_FIRST)
def test_no_module_of_a_run_is_longer_than_a_reader_bears(room: str) -> None:
    assert [name for name in long_files("trainer") if name.startswith(f"trainer/{room}")] == []
