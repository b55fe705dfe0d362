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
INDEXED: Final = ("crawl", "warc_segment", "content_digest")
"""The columns of what a columnar index says of a record, by the index's own names."""


def added_columns(columns: Iterable[str]) -> list[str]:
    """The columns among these that a recipe adds: scores, labels, licences, facts of an index."""
    named = (LICENSE, *INDEXED)
    return [column for column in columns if column.startswith((SCORE, LABEL)) or column in named]
