"""docs/recipes.md: what each step of the published recipes is here.

`python -m pipeline.recipe_help.published docs/recipes.md` writes the tables into the page, between its
marks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pipeline.recipe_help.named import NAMED, published

_MARKS: Final = (
    "<!-- The published recipes, written by `make docs`. -->\n",
    "<!-- End of the published recipes. -->\n",
)


def with_tables(page: str) -> str:
    """The page with its tables made anew."""
    before, begin, rest = page.partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    assert begin and end, f"the page lacks the lines {_MARKS}"
    return before + begin + "\n" + "\n".join(_tables()) + "\n" + end + after


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


def main() -> None:
    """Writes the tables of the page that the call names."""
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
