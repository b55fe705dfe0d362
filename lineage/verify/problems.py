"""The result of `verify`: a problem names what does not hold, where, and how it differs from what should
be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lineage.index.output_index import Index
from lineage.storage.folder import Folder
from lineage.store.damage import DAMAGE


@dataclass(frozen=True, slots=True)
class Problem:
    """`check`: which promise is broken, dotted, e.g. `file.hash`. `where`: a file, table row or document."""

    check: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found: nothing in `problems` means that every promise holds. `notes` are worth reading but no
    failure (rejections by the clock: the only verdicts that another machine might not repeat). `has_more`:
    there are more problems than are listed; what lies behind them was neither looked at nor counted.
    `num_retokenized`: the documents whose texts were compared with their tokens."""

    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]
    has_more: bool = False
    num_files: int
    num_documents: int
    num_tokens: int
    num_retokenized: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyHooks:
    """What `verify` needs from higher layers: the Jaccard similarity of two clean texts as the run measured
    it, whether two of them are near where the run took that from their bands alone (None: the Jaccard
    decided), whether an earlier output that the run compared with holds a document (NotOpenedError: none that
    could be opened), what the report of an output shows otherwise than its store and index (None:
    nothing), and the shards that an epoch reads another number of times than the recipe's [repeat] says of
    their documents."""

    jaccard: Callable[[str, str], float]
    share_band: Callable[[str, str], bool] | None = None
    known_elsewhere: Callable[[bytes], bool] = lambda doc_id: False
    stale_report: Callable[[Folder, Index], str | None] = lambda out, index: None
    wrong_repeats: Callable[[Folder, Index], Iterator[Problem]] = lambda out, index: iter(())


def guarded(check: str, where: str, problems: Iterator[Problem]) -> Iterator[Problem]:
    """`problems`, and one more instead of an exception where a file on its way cannot be read."""
    try:
        yield from problems
    except DAMAGE as error:
        yield Problem(check, where, f"cannot be read: {error}")
