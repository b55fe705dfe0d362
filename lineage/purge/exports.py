"""What a purge does to the recorded exports of an OUT: it cleans each, forgets it by a person's word, or
names it as out of reach.

An export whose version is not that of the corpus has not been cleaned yet. So a purge that was killed here,
or that could not reach a copy, leaves that to the next call."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from lineage.exports.records import FINISHED, FORGOTTEN, is_live, now, read_exports, record_export
from lineage.index.output_index import Index
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.rows import ExportRow

CleanExport = Callable[[Folder, Index, ExportRow], ExportRow]
"""Brings the copy that a row names to what the index of the OUT says: the row as it is to be recorded then.
OSError or ValueError where it cannot, with what it is still lacking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfReach:
    """An export that may still hold purged text, and why it was not cleaned."""

    name: str
    place: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedExports:
    """What became of the recorded exports, by name. Those that hold this version of the corpus already are in
    none."""

    cleaned: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    out_of_reach: tuple[OutOfReach, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedExports:
    """What a purge will do to the recorded exports."""

    to_clean: tuple[ExportRow, ...]
    to_forget: tuple[ExportRow, ...]


def live_exports(out: Folder) -> list[ExportRow]:
    """The recorded copies that may hold text of the OUT."""
    return [row for row in read_exports(out) if is_live(row)]


def check_forgotten(out: Folder, forget: Collection[str]) -> None:
    """RecipeError if one of these names is no recorded export."""
    known = {row.name for row in read_exports(out)}
    for name in sorted(set(forget) - known):
        shown = ", ".join(sorted(known)) or "none"
        raise RecipeError(f"--forget-export {name}: no export of that name is recorded (there are: {shown})")


def plan_exports(
    out: Folder, index: Index, forget: Collection[str], *, changes_corpus: bool
) -> PlannedExports:
    """What `clean_exports` will do after a purge that changes the corpus or, as one of what is purged
    already, leaves it as `index` says. RecipeError as of `check_forgotten`."""
    check_forgotten(out, forget)
    live = live_exports(out)
    return PlannedExports(
        to_clean=tuple(
            row for row in live if row.name not in forget and (changes_corpus or _is_behind(row, index))
        ),
        to_forget=tuple(row for row in live if row.name in forget),
    )


def clean_exports(
    out: Folder, index: Index, clean: CleanExport, forget: Collection[str] = ()
) -> CleanedExports:
    """Clean every live export that does not hold this version of the corpus yet, but for those to `forget`.
    The caller holds the OUT."""
    cleaned, forgotten, out_of_reach = [], [], []
    for row in live_exports(out):
        if row.name in forget:
            record_export(out, replace(row, state=FORGOTTEN, at=now()))
            forgotten.append(row.name)
        elif _is_behind(row, index):
            try:
                left = clean(out, index, row)
            except (OSError, ValueError) as error:
                out_of_reach.append(OutOfReach(name=row.name, place=row.place, reason=str(error)))
                continue
            record_export(out, left)
            cleaned.append(row.name)
    return CleanedExports(
        cleaned=tuple(cleaned), forgotten=tuple(forgotten), out_of_reach=tuple(out_of_reach)
    )


def _is_behind(row: ExportRow, index: Index) -> bool:
    """Whether the copy may hold another version of the corpus than `index` names."""
    return row.state != FINISHED or row.version != index.version
