"""docs/recipes.md: what each step of the published recipes is here.

`python -m pipeline.recipe_help.published docs/recipes.md` writes the tables into the page, between its
marks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pipeline.recipe_help.marked import rewrite, with_lines
from pipeline.recipe_help.named import NAMED, published

_MARKS: Final = (
    "<!-- The published recipes, written by `make docs`. -->\n",
    "<!-- End of the published recipes. -->\n",
)


def with_tables(page: str) -> str:
    """The page with its tables made anew."""
    return with_lines(page, _MARKS, _tables())


def _tables() -> Iterator[str]:
    for name in NAMED:
        original = published(name)
        yield from (
            f"## {original.title}: `sluice recipe new {name}`",
            "",
            f"Source: {original.sources}.",
            "",
        )
        yield from ("| step | the original | here | why |", "| --- | --- | --- | --- |")
        for each in original.steps:
            cells = (each.step, each.original, each.here, each.reason)
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        yield ""


if __name__ == "__main__":
    rewrite(with_tables)
