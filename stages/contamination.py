"""Finding the texts of a benchmark in documents: equal, nearly equal, or sharing n-grams; with the
evidence."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from lineage.ids import text_hash
from stages.composition import clean_text
from stages.dedup.bands import bands_of
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.dedup.shingles import jaccard, shingles
from stages.ngrams import ElementKind, Encode, NgramIndex, character_spans, word_places
from stages.pii.options import PiiTable
from stages.pii.phones import may_hold_phones
from stages.pii.regions import regions_in_use
from stages.pii.scrub import scrub

Kind = Literal["exact", "near", "ngram"]

LEAST_OVERLAP: Final = {"13w": 0.0, "8t": 0.5}
"""A document counts as holding an item when their n-gram overlap is above this. A shared 13-gram of words is
evidence by itself (GPT-3, 2005.14165, appendix C); of 8-grams of tokens more than half of the item (Tülu 3,
2411.15124, 3.2)."""

_STRENGTH: Final[dict[Kind, int]] = {"ngram": 0, "near": 1, "exact": 2}

SHOWN_SPANS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One item found in one document. `overlap` is the share of the item that the document holds (its Jaccard
    where `kind` is near); `longest` counts elements, which are words or tokens; `spans` are half-open ranges
    of characters of the document's clean text, the longest first, `SHOWN_SPANS` of them at most."""

    item: int
    kind: Kind
    overlap: float
    longest: int
    element_kind: ElementKind
    spans: tuple[tuple[int, int], ...]


class Finder:
    """Looks for a list of items in texts. An item is looked for as it is and as our own steps would have left
    it: normalised, and with personal data scrubbed."""

    def __init__(
        self,
        items: Sequence[str],
        ngram: Literal["13w", "8t"],
        table: DedupTable,
        pii: PiiTable,
        encode: Encode | None = None,
    ) -> None:
        self._variants = [
            (number, text) for number, item in enumerate(items) for text in _variants(item, pii)
        ]
        texts = [text for _, text in self._variants]
        self._index = NgramIndex(texts, ngram, encode)
        self._ngram, self._table = ngram, table
        self._hashes: dict[bytes, list[int]] = {}
        for number, text in self._variants:
            self._hashes.setdefault(text_hash(text), []).append(number)
        self._signer = Signer(table)
        self._shingles = [shingles(text, table) for text in texts]
        self._sizes = sorted(len(found) for found in self._shingles)
        self._buckets = self._band_buckets(texts)

    def _band_buckets(self, texts: Sequence[str]) -> dict[int, list[int]]:
        signed = [(place, self._signer.signature(text)) for place, text in enumerate(texts)]
        buckets: dict[int, list[int]] = {}
        for place, signature in signed:
            if signature is not None:
                for key in bands_of(signature, self._table):
                    buckets.setdefault(key, []).append(place)
        return buckets

    @property
    def num_ngrams(self) -> int:
        """Distinct n-grams of all items."""
        return self._index.num_ngrams

    @property
    def skipped(self) -> tuple[int, ...]:
        """Items too short to be looked for, as they are and as our own steps would have left them."""
        short = set(self._index.skipped)
        looked_for = {number for place, (number, _) in enumerate(self._variants) if place not in short}
        return tuple(sorted({number for number, _ in self._variants} - looked_for))

    def ngrams_in(self, text: str) -> npt.NDArray[np.int64]:
        """The numbers of the items' n-grams that a text holds."""
        return self._index.ngrams_in(text)

    def resembles(self, text: str) -> bool:
        """Whether `find` finds anything in a text that holds none of the n-grams: an item shorter than an
        n-gram, or one that the text is or nearly is."""
        return bool(self._index.match_short(text) or self._nearly_equal(text) or self._equal(text))

    def find(self, text: str, ignore: npt.NDArray[np.bool_] | None = None) -> list[Evidence]:
        """The items that a clean text holds, each with its best evidence, in order of item; n-gram k is left
        out where `ignore[k]`."""
        best: dict[int, Evidence] = {}
        for found in (*self._by_ngram(text, ignore), *self._nearly_equal(text), *self._equal(text)):
            known = best.get(found.item)
            if known is None or (_STRENGTH[found.kind], found.overlap) > (
                _STRENGTH[known.kind],
                known.overlap,
            ):
                best[found.item] = found
        return [best[item] for item in sorted(best)]

    def _by_ngram(self, text: str, ignore: npt.NDArray[np.bool_] | None) -> list[Evidence]:
        found = []
        matches = [
            match for match in self._index.match(text, ignore) if match.overlap > LEAST_OVERLAP[self._ngram]
        ]
        words = word_places(text) if matches else []
        for match in matches:
            places = character_spans(words, match.spans[:SHOWN_SPANS])
            found.append(
                Evidence(
                    item=self._variants[match.item][0],
                    kind="ngram",
                    overlap=round(match.overlap, 4),
                    longest=match.longest,
                    element_kind=match.element_kind,
                    spans=tuple(places),
                )
            )
        return found

    def _nearly_equal(self, text: str) -> list[Evidence]:
        own = shingles(text, self._table)
        # |A ∩ B| / |A ∪ B| >= t needs |A| >= t |B|: texts of quite another length are not worth a signature.
        first = bisect.bisect_left(self._sizes, len(own) * self._table.threshold)
        if first == len(self._sizes) or self._sizes[first] > len(own) / self._table.threshold:
            return []
        signature = self._signer.signature(text)
        if signature is None:
            return []
        keys = bands_of(signature, self._table)
        found = []
        for place in sorted({place for key in keys for place in self._buckets.get(key, ())}):
            similarity = jaccard(own, self._shingles[place])
            if similarity >= self._table.threshold:
                found.append(self._whole(self._variants[place][0], "near", round(similarity, 4), text))
        return found

    def _equal(self, text: str) -> list[Evidence]:
        return [self._whole(item, "exact", 1.0, text) for item in self._hashes.get(text_hash(text), ())]

    def _whole(self, item: int, kind: Kind, overlap: float, text: str) -> Evidence:
        return Evidence(
            item=item,
            kind=kind,
            overlap=overlap,
            longest=len(text.split()),
            element_kind="words",
            spans=((0, len(text)),),
        )


def _variants(item: str, pii: PiiTable) -> list[str]:
    text, _ = clean_text(item)
    # A document may have been scrubbed by the phone formats of any country that the recipe lets count in it.
    has_phones = "phone" in pii.kinds and may_hold_phones(text.encode("utf-8", "replace"))
    regions = regions_in_use(pii.phone_region) if has_phones else (None,)
    return list(dict.fromkeys([text, *(scrub(text, pii.kinds, region).text for region in regions)]))
