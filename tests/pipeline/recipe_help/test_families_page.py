"""docs/families.md against the table of families."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pipeline.recipe_help import families
from pipeline.recipe_help.families import with_table
from trainer.model.config.families import TRAINED_KINDS
from trainer.model.config.sizes import model_config

PAGE = Path(__file__).parents[3] / "docs" / "families.md"


def test_a_family_without_a_named_model_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "model_names", lambda: ["debug"])
    with pytest.raises(SystemExit, match="no model of 'mistral' in recipes/models: add one"):
        with_table(PAGE.read_text(encoding="utf-8"))


def test_the_page_of_families_is_made_of_their_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "make docs writes it anew"
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for said in ("custom scale", "soft cap on scores", "tied, embedding × √width, soft cap on logits"):
        assert said in rows["gemma2"]
        assert said not in rows["llama"]
    assert [family for family in TRAINED_KINDS if f"| `{family}` |" not in page] == []


def test_a_scale_of_embeddings_that_is_not_the_root_of_the_width_is_a_number() -> None:
    config = model_config("gemma3-debug", 4096)
    assert list(families._around(config)) == ["tied", "embedding × √width"]
    other = dataclasses.replace(config, embedding_scale=12.0)
    assert list(families._around(other)) == ["tied", "embedding × 12"]
