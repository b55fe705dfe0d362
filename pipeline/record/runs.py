"""The checkpoints whose readings a record adds up: those that are named, and those that their weights began with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lineage.index.output_index import read_index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.attempts import attempts, line_of_attempts
from trainer.checkpoint.store import Checkpoint
from trainer.evidence.chain import first_setup
from trainer.evidence.commitment.commit import read_commitment
from trainer.evidence.commitment.readings import ReadCheckpoint, open_read
from trainer.evidence.origin import links_from
from trainer.provenance.facts import FactLog, SegmentFact, outs_read


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run whose readings count. `begun_by`: the run whose weights began with it, None for one that was named;
    `root`: of its commitment, where it has one."""

    read: ReadCheckpoint
    begun_by: str | None
    root: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRuns:
    """The runs of a record. `unknown`: weights that one began with and of which nothing says what they had read."""

    runs: tuple[RecordedRun, ...]
    unknown: tuple[str, ...]


def recorded_runs(outputs: Sequence[str], outs: Sequence[Folder]) -> RecordedRuns:
    """The newest checkpoints of these runs, and what their weights began with, each reading once. RecipeError where a
    run has no checkpoint, or has read an output that is not among `outs`."""
    found: list[RecordedRun] = []
    unknown: dict[str, None] = {}
    for url in dict.fromkeys(outputs):
        newest = _opened(Folder(url), outs, None)
        _add(found, newest, None)
        setup = first_setup(newest.output, newest.checkpoint)
        for link in links_from(None if setup is None else setup.origin):
            if link.made_by is not None:
                output, _, checkpoint = link.made_by
                _add(found, _opened(output, outs, checkpoint), newest.run)
            if link.why_unknown is not None:
                unknown[f"{link.origin.url}: {link.why_unknown}"] = None
    return RecordedRuns(runs=tuple(found), unknown=tuple(unknown))


def _add(found: list[RecordedRun], read: ReadCheckpoint, begun_by: str | None) -> None:
    """Add a checkpoint, unless it lies on the way to one that is there; those on the way to it go."""
    if any(_leads_to(read, each.read) for each in found):
        return
    found[:] = [each for each in found if not _leads_to(each.read, read)]
    commitment = read_commitment(read.output, read.checkpoint.name)
    root = None if commitment is None else commitment.root
    found.append(RecordedRun(read=read, begun_by=begun_by, root=root))


def _leads_to(earlier: ReadCheckpoint, later: ReadCheckpoint) -> bool:
    if earlier.output.url != later.output.url:
        return False
    line = line_of_attempts(attempts(later.output), later.checkpoint.attempt, later.checkpoint.step)
    return any(
        number == earlier.checkpoint.attempt and earlier.checkpoint.step <= end for number, end in line
    )


def _opened(output: Folder, outs: Sequence[Folder], checkpoint: Checkpoint | None) -> ReadCheckpoint:
    by_url = {out.url: out.url for out in outs}
    by_content = {read_index(out).order_fingerprint: out.url for out in outs}
    places = []
    facts = [fact for _, fact in FactLog(output).facts() if isinstance(fact, SegmentFact)]
    for url in outs_read(output):
        place = by_url.get(Folder(url).url)
        if place is None and Folder(url).exists("index.json"):
            place = by_content.get(read_index(Folder(url)).order_fingerprint)
        contents = {fact.content_fingerprint for fact in facts if fact.out == url}
        place = place or next(
            (out.url for out in outs if read_index(out).content_fingerprint in contents), None
        )
        if place is None:
            raise RecipeError(
                f"--run {output.url}: it has read {url}, which is not among the outputs of the record: give that too,"
                " at its present place"
            )
        places.append(place)
    return open_read(output, places, checkpoint)
