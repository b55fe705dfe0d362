"""What comparing the documents of a corpus came to: counts, and where the verdicts lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Self

from lineage.json_record import JsonRecord
from stages.steps.catalogue import CORPUS_STAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupCounts(JsonRecord):
    """Counts of a partition, of a phase or of all; what a phase does not count is 0.

    `dropped` are documents, by stage. `num_edges` are pairs of equal URLs or texts, `verified_pairs` near
    edges; `capped_buckets` held too many texts to compare each with each. Of the documents dropped for their
    URL `compared_pages` had their text compared with the kept one's, and `unlike_pages` of them, by
    source_index, are not like it. `digest` is that of doc_ids or of edges: its reader takes the sum modulo
    what it is a digest of. `num_cuts` were made inside documents, of `cut_chars` characters; `num_open` is what
    a phase, or a round of one, has left to the next: pairs to compare, repeats to cut."""

    dropped: Mapping[str, int] = field(default_factory=dict)
    num_edges: int = 0
    digest: int = 0
    capped_buckets: int = 0
    candidate_pairs: int = 0
    compared_pairs: int = 0
    verified_pairs: int = 0
    compared_pages: int = 0
    unlike_pages: Mapping[str, int] = field(default_factory=dict)
    num_cuts: int = 0
    num_open: int = 0
    cut_chars: int = 0

    @classmethod
    def total(cls, counts: Iterable[Self]) -> Self:
        """The sums of all."""
        dropped, unlike_pages, others = Counter[str](), Counter[str](), Counter[str]()
        for each in counts:
            dropped.update(each.dropped)
            unlike_pages.update(each.unlike_pages)
            others.update({one.name: getattr(each, one.name) for one in fields(cls) if one.type == "int"})
        return cls(
            dropped=dict(sorted(dropped.items())), unlike_pages=dict(sorted(unlike_pages.items())), **others
        )

    def in_summary(self) -> dict[str, int]:
        """The counts that run.json shows."""
        return {
            **{stage: self.dropped.get(stage, 0) for stage in CORPUS_STAGES},
            "capped_buckets": self.capped_buckets,
            "candidate_pairs": self.candidate_pairs,
            "compared_pairs": self.compared_pairs,
            "verified_pairs": self.verified_pairs,
            "compared_pages": self.compared_pages,
            "unlike_pages": sum(self.unlike_pages.values()),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVerdicts:
    """The VERDICTS file of one group of files: its name in the run's work folder. There is one also without
    rows."""

    source_index: int
    group: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupResult:
    """The verdicts, by (source_index, group), and what was counted on the way."""

    verdicts: tuple[GroupVerdicts, ...]
    counts: DedupCounts
