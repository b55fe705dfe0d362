"""`dedup.keep` by dates: documents without one are counted, and a run without any is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from pipeline.cli.corpus.summary import show_summary
from pipeline.results.run_summary import RunSummary
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import recipe, run

TEXT = "The harbour was closed in the winter, and the ladder was kept in the market."
STEPS = ["parse", "dedup.exact"]


def run_of(folder: Path, rows: list[dict[str, Any]], **dedup: Any) -> dict[str, Any]:
    folder.mkdir()
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    plain = recipe(str(folder / "out"), {"posts": (str(folder / "rows.jsonl"),)}, dedup=dedup)
    plain["source"][0]["steps"] = STEPS
    return run(folder, plain)


@pytest.mark.parametrize(("keep", "kept"), [("earliest", "old"), ("newest", "new")])
def test_the_first_or_last_by_unix_time_stays(tmp_path: Path, keep: str, kept: str) -> None:
    rows = [
        {"id": "new", "text": TEXT, "date": 1_600_000_000},
        {"id": "old", "text": TEXT, "date": "1500000000000"},
    ]
    for order in (1, -1):
        run_of(tmp_path / str(order), rows[::order], keep=keep)
        found = query(
            Folder(str(tmp_path / str(order) / "out")),
            "SELECT record_id FROM documents WHERE status = 'kept'",
        )
        assert found.rows == [(kept,)]


@pytest.mark.parametrize("value", [None, "last week", 12])
def test_a_rule_by_dates_is_refused_where_no_document_has_one(tmp_path: Path, value: object) -> None:
    rows = [{"text": TEXT, "date": value}, {"text": TEXT + " Again."}]
    with pytest.raises(
        RecipeError, match=r"needs dates, and none of the 2 documents has one.*source.date_field"
    ):
        run_of(tmp_path / "a", rows, keep="earliest")
    assert run_of(tmp_path / "b", rows)["num_without_date"] == 2


def test_some_without_a_date_are_counted_and_told(tmp_path: Path) -> None:
    rows = [{"text": f"{TEXT} {n}", "date": value} for n, value in enumerate([1_600_000_000, "soon", None])]
    found = run_of(tmp_path / "a", rows, keep="newest")
    assert (found["num_compared"], found["num_without_date"], found["notes"]) == (3, 2, {"odd_dates": 1})
    screen = Console(record=True, width=200)
    show_summary(screen, RunSummary.from_json(found))
    said = screen.export_text()
    assert '2 of 3 documents that were compared have no date: dedup.keep = "newest"' in said
    assert "1 row without a date, because captured_at or date has no known format, as 'soon' in" in said
