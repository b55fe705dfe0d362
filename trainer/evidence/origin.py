"""Where the weights come from that a run begins with: which run made the folder that `train.init_from` names, with
which weights that run began, and so on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import cast

from lineage.ids import content_hash
from lineage.storage.folder import Folder, split
from trainer.attempts import attempts
from trainer.checkpoint.store import COMPLETE, OWNER, Checkpoint, is_checkpoint, read_position
from trainer.evidence.certified import CertifiedCheckpoint
from trainer.evidence.chain import first_setup
from trainer.evidence.rows import OriginRow
from trainer.huggingface.exported import MADE_FROM
from trainer.huggingface.weights_hash import StretchHashes, stretch_hashes, weights_hash
from trainer.provenance.facts import owner_of
from trainer.provenance.setup import Origin
from trainer.recovery.readings import as_of, readings


def origin_of(url: str, hashes: StretchHashes | None = None) -> Origin:
    """The origin of a checkpoint, or of a folder of safetensors; RecipeError where it is neither. `hashes`: of
    every stretch of the safetensors, where the ranks have made them already.

    A checkpoint's own record holds the hash of each of its files, and a run checks them as it begins; nothing
    holds those of a folder of safetensors, which is read whole."""
    folder = Folder(url)
    if is_checkpoint(folder):
        position = read_position(folder)
        above, _ = split(folder.url)
        output = json.loads(above.read(OWNER))["output"] if above.exists(OWNER) else split(above.url)[0].url
        return Origin(
            url=folder.url,
            digest=content_hash(folder.read(COMPLETE)).hex(),
            output=output,
            run=owner_of(Folder(output)),
            step=position.step,
            attempt=position.attempt,
        )
    weights = weights_hash(stretch_hashes(folder) if hashes is None else hashes)
    made = json.loads(folder.read(MADE_FROM)) if folder.exists(MADE_FROM) else {}
    # Another tool that trains on in the folder leaves this file there: its weights are no longer that run's.
    is_as_made = made.get("weights") == weights
    names = ("output", "run", "step", "attempt")
    return Origin(
        url=folder.url,
        digest=content_hash(folder.read("config.json") + weights.encode()).hex(),
        **{name: made.get(name) if is_as_made else None for name in names},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Weights that a run began with. `made_by`: the output, name and checkpoint of the run that made them,
    where it is there; `why_unknown`: why that, or what that run began with, cannot be known."""

    origin: Origin
    made_by: tuple[Folder, str, Checkpoint] | None = None
    why_unknown: str | None = None


def links(certified: CertifiedCheckpoint) -> Iterator[Link]:
    """The weights that the run began with, and those that their run began with, as far as that is
    recorded."""
    setup = first_setup(certified.output, certified.checkpoint)
    yield from links_from(None if setup is None else setup.origin)


def links_from(origin: Origin | None) -> Iterator[Link]:
    """The weights of `origin`, and those that their run began with; none where a run began from the seed."""
    seen: set[tuple[str, int | None]] = set()
    while origin is not None:
        # A run that began with its own later weights would never end: such a record is damaged or a lie.
        key = (origin.url, origin.attempt)
        if origin.output is None or origin.step is None or origin.attempt is None or key in seen:
            yield Link(origin=origin, why_unknown="nothing says which run made its weights")
            return
        seen.add(key)
        theirs = Folder(origin.output)
        if origin.run is None or not attempts(theirs) or owner_of(theirs) != origin.run:
            why = f"{origin.output} is there no more, or holds another run"
            yield Link(origin=origin, why_unknown=why)
            return
        made = Checkpoint(name=origin.url, step=origin.step, attempt=origin.attempt)
        setup = first_setup(theirs, made)
        unknown = None if setup is not None else f"what {origin.output} began with is not recorded"
        yield Link(origin=origin, made_by=(theirs, origin.run, made), why_unknown=unknown)
        origin = None if setup is None else setup.origin


def init_from(certified: CertifiedCheckpoint) -> list[OriginRow]:
    """Each of `links`, with how many readings of what was purged are in it, None where that cannot be
    known."""
    rows: list[OriginRow] = []
    for link in links(certified):
        num = None
        if link.made_by is not None:
            output, name, made = link.made_by
            num = sum(
                exposure.applied
                for purged in certified.purged
                for run in purged.runs([output.url])
                if run.run == name
                for _, exposure in readings(as_of(run, attempts(output), made.attempt, made.step), purged)
            )
        row = asdict(link.origin) | {"readings": num, "why_unknown": link.why_unknown}
        rows.append(cast(OriginRow, row))
    return rows
