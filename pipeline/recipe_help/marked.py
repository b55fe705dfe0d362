"""Pages of docs/ whose tables stand between two marks: they are made anew, and the prose is left as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path


def with_lines(page: str, marks: tuple[str, str], lines: Iterable[str]) -> str:
    """The page with these lines between its marks."""
    before, begin, rest = page.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    assert begin and end, f"the page lacks the lines {marks}"
    return before + begin + "\n" + "\n".join(lines).rstrip("\n") + "\n\n" + end + after


def rewrite(made_anew: Callable[[str], str]) -> None:
    """Write the page that the call names as it is made anew."""
    path = Path(sys.argv[1])
    path.write_text(made_anew(path.read_text(encoding="utf-8")), encoding="utf-8")
