"""What an export is asked for: its format and the options that shape its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from blake3 import blake3

from lineage.recipe import RecipeError

DTYPES: Final = ("auto", "uint16", "uint32")
DEFAULT_FILE_DOCUMENTS: Final = 100_000
_SPLIT_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,29}")
_SPLIT_KEY: Final = blake3(b"sluice export split").digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """Two exports of one corpus with equal requests have equal bytes. `split`: (name, share) pairs whose
    shares sum to 1, in an order that says which documents each gets; none: everything is one split without a
    name. `dtype`: one of DTYPES, of token formats. `tokens`: tokens instead of texts, for formats that can
    hold both. `file_documents`: how many rows of documents/ one file takes at most, unless one part has more.
    `sources`: of these sources only, none: of all."""

    format: str
    split: tuple[tuple[str, float], ...] = ()
    dtype: str = "auto"
    tokens: bool = False
    file_documents: int = DEFAULT_FILE_DOCUMENTS
    sources: tuple[str, ...] = ()

    def takes(self, source: str) -> bool:
        """Whether the documents of a source are exported."""
        return not self.sources or source in self.sources

    def to_json(self) -> dict[str, object]:
        """Whoever writes it keeps its order, which is that of the splits."""
        return {**asdict(self), "split": dict(self.split), "sources": list(self.sources)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """The request that `to_json` gave."""
        named = {**plain, "split": tuple(plain["split"].items()), "sources": tuple(plain["sources"])}
        return cls(**named)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits; one empty name where there are none."""
        return tuple(name for name, _ in self.split) or ("",)

    def split_of(self, doc_id: bytes) -> str:
        """The split of a document: a keyed hash of its id against the shares, so one document is always in
        one split, whatever else the corpus holds."""
        if not self.split:
            return ""
        drawn = int.from_bytes(blake3(doc_id, key=_SPLIT_KEY).digest(length=8), "big") / 2**64
        reached = 0.0
        for name, share in self.split:
            reached += share
            if drawn < reached:
                return name
        return self.split[-1][0]  # the shares sum to 1 but for rounding


def parse_split(text: str | None) -> tuple[tuple[str, float], ...]:
    """`train=0.99,validation=0.01` as pairs; RecipeError names what is wrong. A name without a share gets
    what is left."""
    if not text:
        return ()
    pairs: list[tuple[str, float | None]] = []
    for unit in text.split(","):
        name, equals, share = unit.strip().partition("=")
        if not _SPLIT_NAME.fullmatch(name) or name in dict(pairs):
            raise RecipeError(
                f"--split {text}: {name!r}: expected different names of lower-case letters, digits and"
                " underscores, as in train=0.99,validation=0.01"
            )
        pairs.append((name, _share(text, share) if equals else None))
    given = sum(share for _, share in pairs if share is not None)
    open_names = [name for name, share in pairs if share is None]
    if len(open_names) > 1 or given > 1 + 1e-9 or (not open_names and abs(given - 1) > 1e-9):
        raise RecipeError(f"--split {text}: expected shares that sum to 1 (one of them may be left out)")
    return tuple((name, round(1 - given, 12) if share is None else share) for name, share in pairs)


def _share(text: str, share: str) -> float:
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise RecipeError(f"--split {text}: {share!r}: expected a share above 0, at most 1")
    return value
