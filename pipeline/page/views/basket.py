"""What the items of a basket name: the documents of each, or what is nearest to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from lineage.ids import parse_id
from lineage.pages import named_host, registered_domain
from lineage.purge.plan import PurgeMatch
from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.rows import DocumentRow
from lineage.trace.nearest import nearest
from lineage.trace.tracer import UnknownError, one_each
from pipeline.inspect.purge_targets import targets_where
from pipeline.page.notes import BasketItem
from pipeline.page.views.search import recorded_spelling
from pipeline.page.views.written import NamesInText

_MOST_NEAREST: Final = 20
"""Unknown names for which the nearest is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedByItem:
    """What an item names: `rows` are the documents of an id or URL, a row of each, `num` how many documents
    it has, `match` those of a condition (both None for one that was not asked). Of an item that names none
    `refused` says so, and `near` are the recorded ids or URLs that are most like it."""

    item: BasketItem
    rows: tuple[DocumentRow, ...] = ()
    num: int | None = None
    match: PurgeMatch | None = None
    refused: str = ""
    near: tuple[str, ...] = ()


def items_of(lookup: Lookup, written: NamesInText) -> list[BasketItem]:
    """What somebody has written as items, URLs as they are recorded: one for all spellings of a name."""
    spelt: dict[BasketItem, list[str]] = defaultdict(list)
    for name in written.names:
        is_url = name.kind == "url"
        value = recorded_spelling(lookup, name.value, name.longer) if is_url else name.value
        spelt[BasketItem(kind=name.kind, value=value)].append(name.written)
    return [replace(item, written=" and ".join(words)) for item, words in spelt.items()]


def named_by(
    lookup: Lookup, items: Sequence[BasketItem], conditions_of: Folder | None = None
) -> list[NamedByItem]:
    """What each of these items names, in order. A condition reads every row of an output: it is asked only of
    `conditions_of`."""
    of_ids: dict[str, list[DocumentRow]] = defaultdict(list)
    for row in lookup.documents([parse_id(item.value) for item in items if item.kind == "doc"]):
        of_ids[row.doc_id.hex()].append(row)
    of_urls = lookup.of_urls([item.value for item in items if item.kind == "url"])
    num_unknown, found = 0, []
    for item in items:
        try:
            if item.kind in {"doc", "url"}:
                rows = one_each(of_ids[item.value] if item.kind == "doc" else of_urls[item.value])
                named = NamedByItem(item=item, rows=tuple(rows), num=len(rows))
            elif item.kind == "where":
                match = None if conditions_of is None else targets_where(conditions_of, item.value).match
                named = NamedByItem(item=item, num=None if match is None else len(match.values), match=match)
            else:
                named = NamedByItem(item=item, num=_num_of(lookup, item))
        except (RecipeError, UnknownError) as error:
            named = NamedByItem(item=item, num=0, refused=str(error))
        if named.num == 0 and not named.refused:
            num_unknown += 1
            what = {"doc": "id", "url": "URL"}.get(item.kind, item.kind)
            is_asked = item.kind in ("doc", "url") and num_unknown <= _MOST_NEAREST
            near = tuple(nearest(lookup, item.value)) if is_asked else ()
            named = replace(named, refused=f"no document has the {what} {item.value}", near=near)
        found.append(named)
    return found


def purged_among(lookup: Lookup, named: Sequence[NamedByItem]) -> set[bytes]:
    """The ids of those documents that were purged."""
    ids = sorted({row.doc_id for entry in named for row in entry.rows})
    return {row.doc_id for row in lookup.purged(ids)}


def _num_of(lookup: Lookup, item: BasketItem) -> int:
    """How many documents a host or domain has."""
    name = named_host(item.value)
    if name is None or (item.kind == "domain" and registered_domain(name) is None):
        return 0
    return len(set(lookup.ids_of_host(name) if item.kind == "host" else lookup.ids_of_domain(name)))
