"""What a model had read of an evaluation's items: the outputs that its run reads are scanned for them, and those that
the runs before it read, with whose weights it began."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.storage.places import same_place
from lineage.store.lookup import Lookup
from pipeline.inspect.scan.passes import finder_of
from pipeline.inspect.scan.scan import find_items, scan_job
from pipeline.inspect.scan.scanned_runs import ReadItem
from pipeline.inspect.trace.tracing import UNREADABLE
from pipeline.phases.progress import ProgressReporter
from pipeline.recipe.load import recipe_of
from pipeline.recipe.tables import RayTable
from trainer.attempts import attempts
from trainer.checkpoint.store import Checkpoint
from trainer.evaluation.result import SeenItem
from trainer.evaluation.scanned import HeldSpan, ScannedItems, ScannedOutput, scanned_again
from trainer.evidence.chain import first_setup
from trainer.evidence.origin import links_from
from trainer.provenance.facts import FactLog, SegmentFact
from trainer.provenance.reached import facts_of
from trainer.provenance.setup import Origin
from trainer.recovery.read_items import read_items

_AT_ONCE = 256  # documents that the lineage store is asked for at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlace:
    """An output of a data run, and what a training run puts before its sources' names."""

    out: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedFor:
    """The texts that are looked for, by item, and their digest. `ray`: where outputs are scanned; None:
    as their own recipes say."""

    texts: tuple[str, ...]
    digest: str
    reporter: ProgressReporter
    ray: RayTable | None = None


def scan_before(
    asked: LookedFor, places: Sequence[DataPlace], origin: Origin | None, known: ScannedItems | None = None
) -> ScannedItems:
    """Where the outputs of `places` hold the items, and what the weights of `origin` had read. Of `known`, an earlier
    scan for the same run, what still holds is taken over. Errors as of reading an output; what the runs before read and
    cannot be looked at is told as unknown."""
    before = known if known is not None and known.digest == asked.digest else None
    outputs = tuple(_scanned(asked, place, _known_of(place, places, before)) for place in places)
    found, unknown = ((), ()) if origin is None else _of_origin(asked, origin)
    return ScannedItems(
        digest=asked.digest,
        too_short=_too_short(asked, places),
        outputs=outputs,
        before=found,
        unknown=unknown,
    )


def data_places(output: Folder) -> list[DataPlace]:
    """The outputs that a run read, by its own facts: where they lay last. Each attempt reads all of them."""
    facts = [fact for _, fact in FactLog(output).facts() if isinstance(fact, SegmentFact)]
    newest = max((fact.attempt for fact in facts), default=0)
    places = ((fact.out, fact.prefix) for fact in facts if fact.attempt == newest)
    return [DataPlace(out=out, prefix=prefix) for out, prefix in dict.fromkeys(places)]


def scan_of_run(
    asked: LookedFor, output: Folder, checkpoint: Checkpoint, known: ScannedItems | None = None
) -> ScannedItems:
    """As `scan_before` of the run at `output`: where an output that it read cannot be read, that is told as unknown."""
    setup = first_setup(output, checkpoint)
    whole = scan_before(asked, (), None if setup is None else setup.origin)
    before = known if known is not None and known.digest == asked.digest else None
    places, outputs, unknown = data_places(output), list[ScannedOutput](), list(whole.unknown)
    for place in places:
        try:
            outputs.append(_scanned(asked, place, _known_of(place, places, before)))
        except UNREADABLE as error:
            unknown.append(f"{place.out} cannot be scanned: {error}")
    return replace(
        whole,
        too_short=_too_short(asked, [DataPlace(out=one.out, prefix=one.prefix) for one in outputs]),
        outputs=tuple(outputs),
        unknown=tuple(unknown),
    )


def _known_of(
    place: DataPlace, places: Sequence[DataPlace], known: ScannedItems | None
) -> ScannedOutput | None:
    """What an earlier scan found in an output; where that was moved since, it is the one with its prefix."""
    alike = [one for one in (known.outputs if known else ()) if one.prefix == place.prefix]
    here = [one for one in alike if same_place(Folder(one.out), Folder(place.out))]
    is_alone = sum(other.prefix == place.prefix for other in places) == 1
    return next(iter(here or (alike if is_alone else ())), None)


def _scanned(asked: LookedFor, place: DataPlace, before: ScannedOutput | None) -> ScannedOutput:
    out = Folder(place.out)
    index = read_index(out)
    if before is not None and before.content_fingerprint == index.content_fingerprint:
        return before
    recipe = recipe_of(out)
    job = scan_job(out, index, recipe, asked.texts, "13w")
    found = find_items(out, index, job, asked.ray or recipe.ray, asked.reporter, places=True)
    now = ScannedOutput(
        out=out.url,
        prefix=place.prefix,
        content_fingerprint=index.content_fingerprint,
        spans=tuple(sorted(set(_placed(out, found.read_items())))),
    )
    return now if before is None else scanned_again(now, before)


def _placed(out: Folder, items: Sequence[ReadItem]) -> Iterable[HeldSpan]:
    """The tokens of shards that hold items; none of a document that was dropped as a duplicate."""
    lookup, distinct = Lookup(out), list(dict.fromkeys(read.doc_id for read in items))
    rows = {}
    for first in range(0, len(distinct), _AT_ONCE):
        # Of rows with equal ids the kept one has a place.
        for row in lookup.documents(distinct[first : first + _AT_ONCE]):
            if row.shard is not None and row.start is not None and row.num_tokens is not None:
                rows[row.doc_id] = (row.shard_source, row.shard, row.start, row.num_tokens)
    for read in items:
        if read.doc_id in rows:
            source, shard, start, num_tokens = rows[read.doc_id]
            for begin, end in read.spans:
                length = min(end, num_tokens) - begin
                yield HeldSpan(
                    item=read.item, source=source, shard=shard, start=start + begin, num_tokens=length
                )


def _too_short(asked: LookedFor, places: Sequence[DataPlace]) -> tuple[int, ...]:
    """The items that no scan looks for; none where nothing is scanned."""
    for place in places:
        out = Folder(place.out)
        return finder_of(scan_job(out, read_index(out), recipe_of(out), asked.texts, "13w")).skipped
    return ()


def _of_origin(asked: LookedFor, origin: Origin) -> tuple[tuple[SeenItem, ...], tuple[str, ...]]:
    """What the runs read whose weights led to these, the earliest reading of each item, and what is not known."""
    first: dict[int, SeenItem] = {}
    unknown: list[str] = []
    for link in links_from(origin):
        if link.why_unknown is not None:
            unknown.append(f"what {link.origin.url} had read: {link.why_unknown}")
        if link.made_by is None:
            continue
        output, name, made = link.made_by
        places = [_scan_or_tell(asked, place, unknown) for place in data_places(output)]
        scanned = ScannedItems(digest=asked.digest, too_short=(), outputs=tuple(one for one in places if one))
        read = read_items(scanned, facts_of(output), attempts(output), attempt=made.attempt, step=made.step)
        for each in read:
            later = first.get(each.item)
            readings = each.readings + (0 if later is None else later.readings)
            first[each.item] = replace(each, run=name, readings=readings)
    return tuple(first[item] for item in sorted(first)), tuple(unknown)


def _scan_or_tell(asked: LookedFor, place: DataPlace, unknown: list[str]) -> ScannedOutput | None:
    try:
        return _scanned(asked, place, None)
    except UNREADABLE as error:
        unknown.append(f"{place.out} cannot be scanned: {error}")
        return None
