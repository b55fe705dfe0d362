"""The columns that a recipe adds to `documents` and to the parts, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SCORE: Final = "score_"
"""What the column of a classifier's score begins with."""


LABEL: Final = "label_"
"""What the column of the label that a classifier found likeliest begins with."""
LICENSE: Final = "license"
"""The column of a source file's licence, as names of SPDX."""


INSIDE: Final = "dedup.inside"
"""The stage that cuts repeats out of documents: it comes after all others, and is on where [dedup.inside] names a
method."""
TWIN: Final = ("start", "twin", "twin_start")
"""The columns of `edits` where a recipe has repeats cut out of documents: where the text was, the document in which it
stays, and where there; places are characters of the texts as they are published."""


def added_columns(columns: Iterable[str]) -> list[str]:
    """The columns among these that a recipe adds to `documents`: scores, labels, licences."""
    return [column for column in columns if column.startswith((SCORE, LABEL)) or column == LICENSE]


def added_to_edits(columns: Iterable[str]) -> list[str]:
    """The columns among these that a recipe adds to `edits`."""
    return [column for column in columns if column in TWIN]
