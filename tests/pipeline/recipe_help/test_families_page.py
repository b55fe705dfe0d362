"""docs/families.md against the table of families."""

from __future__ import annotations

from pathlib import Path

from pipeline.recipe_help.families import with_table
from trainer.model.families import TRAINED_KINDS

PAGE = Path(__file__).parents[3] / "docs" / "families.md"


def test_the_page_of_families_is_made_of_their_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "make docs writes it anew"
    assert [family for family in TRAINED_KINDS if f"| `{family}` |" not in page] == []
