"""The recipe's [dedup.inside] table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lineage.recipe import key
from lineage.store.column_names import INSIDE

TOO_SHORT: Final = f"{INSIDE}.min_chars"
MOSTLY_REPEATED: Final = f"{INSIDE}.min_share"
"""The rules by which a document of which too little is left is rejected."""

Method = Literal["none", "substring", "paragraph", "line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideTable:
    """Which text that stands elsewhere too is cut out of a document, and how much must be left of it.

    Of each repeat one copy stays: that of the document which dedup.keep prefers, the first one inside it."""

    method: Method = key(
        "none",
        help="what is cut out of documents where it is repeated: any run of min_bytes (Lee et al. 2021, Dolma 3);"
        " paragraphs whose n-grams are repeated (DCLM's bff); lines (CCNet)",
    )
    min_bytes: int = key(
        500,
        at_least=32,
        at_most=1 << 16,
        help="substring: a run of at least this many bytes of UTF-8 that stands twice is a repeat (Dolma 3)",
    )
    border: Literal["word", "line"] = key(
        "word", help="substring: cuts are shortened to whole words, or to whole lines"
    )
    max_gap: int = key(
        0,
        at_least=0,
        at_most=1 << 16,
        unit="characters",
        help="substring: text between two cuts that is no longer is cut too, unless another document's cut"
        " relies on it (0: none)",
    )
    ngram: int = key(
        13, at_least=1, at_most=256, unit="words", help="paragraph: length of an n-gram (DCLM-Baseline)"
    )
    min_ngram: int = key(
        13,
        at_least=1,
        at_most=256,
        unit="words",
        help="paragraph: a paragraph with fewer words than ngram is one n-gram; with fewer than this it is kept"
        " and not compared",
    )
    threshold: float = key(
        0.8,
        at_least=0,
        at_most=1,
        help="paragraph: cut if more than this share of its n-grams stands in text that is kept before it",
    )
    whole_document: bool = key(
        True,
        help="paragraph: reject a document if more than the threshold of all its n-grams stood before (bff's"
        " old-both)",
    )
    share: float = key(
        1.0,
        above=0,
        at_most=1,
        help="line: the corpus is divided by doc_id into shares of this size, and lines are compared within each"
        " (CCNet: 50 of 1,600 shards)",
    )
    min_chars: int = key(
        200,
        at_least=1,
        help="a document from which something was cut is rejected if fewer characters are left",
    )
    min_share: float = key(
        0.0,
        at_least=0,
        at_most=1,
        help="a document from which something was cut is rejected if a smaller share of its characters is left",
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is cut."""
        return self.method != "none"
