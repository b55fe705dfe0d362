"""Where the data of a run holds items of an evaluation, as a scan of its outputs found them
(`<output>/evaluations/scan-DIGEST.json`). Tokens are named and no text is kept, so a purge need not reach here. No
torch here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lineage.json_record import JsonRecord
from lineage.storage.folder import Folder
from trainer.evaluation.prepared import FOLDER
from trainer.evaluation.result import Seen, SeenItem


class HeldSpan(NamedTuple):
    """Tokens of a shard that hold an item."""

    item: int
    source: str
    shard: int
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedSpans(JsonRecord):
    """Spans that an earlier scan found and that purges have erased since: not in the contents `erased_in`."""

    spans: tuple[HeldSpan, ...]
    erased_in: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedOutput(JsonRecord):
    """An output of a data run that a training run reads under the source names of `prefix`."""

    out: str
    prefix: str
    content_fingerprint: str
    spans: tuple[HeldSpan, ...]
    erased: tuple[ErasedSpans, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedItems(JsonRecord):
    """The items of an evaluation in what a run reads. `digest`: BLAKE3-128 (hex) of the texts that were looked
    for; `too_short`: items that are not
    looked for; `before`: what the weights that the run began with had read; `unknown`: what could not be looked at, a
    sentence each."""

    digest: str
    too_short: tuple[int, ...]
    outputs: tuple[ScannedOutput, ...]
    before: tuple[SeenItem, ...] = ()
    unknown: tuple[str, ...] = ()


def scanned_again(now: ScannedOutput, known: ScannedOutput) -> ScannedOutput:
    """What a scan found, and what an earlier one of the same output had found that is there no more."""
    there, fingerprint = set(now.spans), now.content_fingerprint
    old = [ErasedSpans(spans=known.spans, erased_in=()), *known.erased]
    erased = (
        ErasedSpans(
            spans=tuple(span for span in one.spans if span not in there),
            erased_in=(*one.erased_in, fingerprint),
        )
        for one in old
    )
    return ScannedOutput(
        out=now.out,
        prefix=now.prefix,
        content_fingerprint=fingerprint,
        spans=now.spans,
        erased=tuple(one for one in erased if one.spans),
    )


def publish_scanned(output: Folder, scanned: ScannedItems) -> None:
    """Write a scan into the output of a run."""
    output.publish(_name(scanned.digest), json.dumps(scanned.to_json()).encode())


def read_scanned(output: Folder, digest: str) -> ScannedItems | None:
    """The scan for items of this digest in what the run at `output` reads; None where there is none."""
    name = _name(digest)
    return ScannedItems.from_json(json.loads(output.read(name))) if output.exists(name) else None


def _name(digest: str) -> str:
    return f"{FOLDER}/scan-{digest}.json"


def seen_with(scanned: ScannedItems, read: Sequence[SeenItem], kept: Sequence[int]) -> Seen:
    """What a checkpoint had read of an evaluation: what its run read up to there (`read`), and the weights that it
    began with. `kept`: the steps done at each checkpoint that is there up to it."""
    first = {each.item: each for each in scanned.before}
    for each in read:
        earlier = first.get(each.item)
        first[each.item] = (
            each
            if earlier is None
            else SeenItem(
                item=each.item,
                first_step=earlier.first_step,
                readings=earlier.readings + each.readings,
                run=earlier.run,
            )
        )
    clean: int | None = None
    if not scanned.before:
        least = min((each.first_step for each in read), default=None)
        clean = max((done for done in kept if least is None or done <= least), default=0)
    return Seen(
        items=tuple(first[item] for item in sorted(first)),
        too_short=scanned.too_short,
        last_clean_checkpoint=clean,
        unknown=scanned.unknown,
    )
