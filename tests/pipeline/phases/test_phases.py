"""A phase: what is left of it is done, in an order that keeps all workers busy."""

from __future__ import annotations

import io
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from pipeline.cluster import underway
from pipeline.phases import progress as progress_module
from pipeline.phases.phase import Phase, RunState, publish_result, run_phase
from pipeline.phases.progress import ProgressReporter, a_second, parse_line
from pipeline.plan import plan_run
from pipeline.recipe.load import load
from tests.support.outputs.runs import ON_RAY, recipe, write_recipe


@dataclass(frozen=True, slots=True)
class Piece:
    """Something to do, of some size."""

    name: str
    size: float

    @property
    def marker(self) -> str:
        return f"work/pieces/{self.name}.json"


@dataclass(frozen=True, slots=True)
class PieceResult(JsonRecord):
    """What was done."""

    name: str


def do(out: str, piece: Piece) -> PieceResult:
    """Note that a piece was done."""
    with open(f"{out}/order.txt", "a", encoding="utf-8") as order:
        order.write(f"{piece.name}\n")
    return publish_result(Folder(out), piece.marker, PieceResult(piece.name))


def begin(folder: Path, ray_table: dict[str, Any], reporter: ProgressReporter) -> RunState:
    """A run of one small input into `out`; workers know this module from here on, as they do not by itself."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    (folder / "web.jsonl").write_text('{"text": "one"}\n')
    plain = recipe(str(folder / "out"), {"web": (str(folder / "web.jsonl"),)}, ray=ray_table)
    plan = plan_run(load(write_recipe(folder / "recipe.toml", plain)))
    (folder / "out").mkdir(exist_ok=True)
    return RunState(plan=plan, reporter=reporter)


@pytest.mark.usefixtures("small_ray")
def test_large_items_are_begun_first_and_answers_come_in_the_order_of_the_items(tmp_path: Path) -> None:
    out = tmp_path / "out"
    state = begin(tmp_path, ON_RAY | {"max_in_flight": 1}, ProgressReporter(quiet=True))
    sizes = {"small": 1.0, "large": 9.0, "done": 20.0, "also small": 1.0, "medium": 5.0}
    pieces = [Piece(name, size) for name, size in sizes.items()]
    publish_result(Folder(str(out)), "work/pieces/done.json", PieceResult("done"))
    seen: list[str] = []
    phase = Phase(
        name="pieces",
        operator="pieces",
        kind="read",
        task=do,
        result=PieceResult,
        job=str(out),
        units=pieces,
        size=lambda piece: piece.size,
        watch=lambda result: seen.append(result.name),
    )
    assert [result.name for result in run_phase(state, phase)] == list(sizes)
    assert seen == ["done", "large", "medium", "small", "also small"]
    assert (out / "order.txt").read_text().splitlines() == ["large", "medium", "small", "also small"]


class Stderr(io.StringIO):
    """Notes in a file that a line with this text was written."""

    def __init__(self, text: str, noted: Path) -> None:
        super().__init__()
        self._text, self._noted = text, noted

    def write(self, text: str) -> int:
        if self._text in text:
            self._noted.touch()
        return super().write(text)


def tell_until_it_is_shown(out: str, piece: Piece) -> PieceResult:
    """Tell that half of the large piece is done, until a line has said so."""
    setattr(underway, "EVERY_SECONDS", 0.0)  # noqa: B010 - another process
    progress = underway.UnitProgress(piece.marker)
    while piece.name == "large" and not os.path.exists(f"{out}/shown"):
        progress.tell(0.5)
        time.sleep(0.01)
    return do(out, piece)


@pytest.mark.usefixtures("small_ray")
@pytest.mark.parametrize("ray_table", [ON_RAY, {"address": "none"}], ids=["on Ray", "in this process"])
def test_a_line_tells_how_far_a_unit_under_way_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_table: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    state = begin(tmp_path, ray_table, ProgressReporter())
    publish_result(Folder(str(out)), "work/pieces/done.json", PieceResult("done"))
    monkeypatch.setattr(progress_module, "_LINE_EVERY_SECONDS", 0.05)
    stderr = Stderr("pieces: 75% after", out / "shown")
    monkeypatch.setattr(sys, "stderr", stderr)
    phase = Phase(
        name="pieces",
        operator="pieces",
        kind="read",
        task=tell_until_it_is_shown,
        result=PieceResult,
        job=str(out),
        units=[Piece("done", 10.0), Piece("large", 10.0)],
        size=lambda piece: piece.size,
    )
    run_phase(state, phase)
    told = [line for line in map(parse_line, stderr.getvalue().splitlines()) if line is not None]
    assert {line.share for line in told} <= {0.5, 0.75, 1.0}


def test_a_phase_of_less_than_a_second_tells_no_speed() -> None:
    def shown(rate: int) -> str:
        return f"{rate:,} characters/s"

    assert a_second(4_000, 0.99, shown) == ""
    assert a_second(4_000, 2.0, shown) == ", 2,000 characters/s"
