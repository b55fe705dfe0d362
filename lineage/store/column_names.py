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
SIGNALS: Final = "signals"
"""The signals of publishers about a page, a JSON list of objects (`stages.rights.decide.as_text`)."""
TRAINING_USE: Final = "training_use"
TRAINING_USE_BY: Final = "training_use_by"
"""What they come to for training, and the kind of signal that decides."""
RIGHTS: Final = (SIGNALS, TRAINING_USE, TRAINING_USE_BY)
"""Columns of `documents` alone, and not of the parts."""


INSIDE: Final = "dedup.inside"
"""The stage that cuts repeats out of documents: it comes after all others, and is on where [dedup.inside] names a
method."""
TWIN: Final = ("start", "twin", "twin_start")
"""The columns of `edits` where a recipe has repeats cut out of documents: where the text was, the document in which it
stays, and where there; places are characters of the texts as they are published."""


def added_columns(columns: Iterable[str]) -> list[str]:
    """The columns among these that a recipe adds to `documents`: scores, labels, licences, facts of an index,
    signals of publishers."""
    named = (LICENSE, *INDEXED, *RIGHTS)
    return [column for column in columns if column.startswith((SCORE, LABEL)) or column in named]


def added_to_edits(columns: Iterable[str]) -> list[str]:
    """The columns among these that a recipe adds to `edits`."""
    return [column for column in columns if column in TWIN]
