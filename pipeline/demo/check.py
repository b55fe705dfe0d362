"""Planted against found: did every plant meet the end that its truth says?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from lineage.storage.folder import Folder
from lineage.store.queries.sql import questions
from pipeline.demo.crawl import Plant, Truth

_ShownEnd = tuple[str, str | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantOutcome:
    """Of one kind of plant: how many were planted, how many met their end, and what happened to the
    others."""

    kind: str
    planted: int
    found: int
    astray: tuple[str, ...]


def check_truth(out: Folder, truth: Truth) -> list[PlantOutcome]:
    """Each kind of plant, in the order of planting, and last the unreadable stretches."""
    ends: dict[str, list[_ShownEnd]] = defaultdict(list)
    edited: dict[str, set[str]] = defaultdict(set)
    ids: dict[str, str] = {}
    with questions(out) as ask:
        documents = ask("SELECT doc_id, url, status, stage, rule FROM documents").rows
        edits = ask("SELECT doc_id, kind FROM edits").rows
        broken = ask("SELECT count(*) FROM unreadable").rows[0][0]
    for doc_id, url, status, stage, rule in documents:
        ends[str(url)].append((str(status), _text(stage), _text(rule)))
        ids[str(doc_id)] = str(url)
    for doc_id, kind in edits:
        edited[ids[str(doc_id)]].add(str(kind))
    planted: Counter[str] = Counter()
    met: Counter[str] = Counter()
    astray: dict[str, list[str]] = defaultdict(list)
    for plant in truth.plants:
        planted[plant.kind] += 1
        if _met(plant, ends, edited):
            met[plant.kind] += 1
        else:
            astray[plant.kind].append(f"{plant.url}: {ends.get(plant.url, 'not there')}")
    rows = [
        PlantOutcome(kind=kind, planted=num, found=met[kind], astray=tuple(astray[kind]))
        for kind, num in planted.items()
    ]
    wanted = sum(truth.unreadable.values())
    return [
        *rows,
        PlantOutcome(kind="broken records", planted=wanted, found=min(int(str(broken)), wanted), astray=()),
    ]


def _met(plant: Plant, ends: dict[str, list[_ShownEnd]], edited: dict[str, set[str]]) -> bool:
    end = (plant.status, plant.stage, plant.rule)
    if plant.twin is not None:
        both = [*ends[plant.url], *(ends[plant.twin] if plant.twin != plant.url else [])]
        return both.count(end) == 1 and len(both) == 2
    return ends.get(plant.url) == [end] and (plant.edit is None or plant.edit in edited[plant.url])


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def summary_kinds(found: Sequence[PlantOutcome]) -> tuple[int, int]:
    """How many plants there were and how many met their end."""
    return sum(row.planted for row in found), sum(row.found for row in found)
