"""What an output's recipe says that its tables do not: which documents are of one page, whether any is
repeated."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lineage.index.checksums import DamagedFileError
from lineage.index.names import RECIPE_FILE
from lineage.storage.folder import Folder


def sources_with_fragments(out: Folder) -> frozenset[str]:
    """The sources in which URLs that differ in the fragment alone are different pages (`source.fragments`).

    DamagedFileError if the output's recipe cannot be read."""
    with _read_recipe(out) as recipe:
        return frozenset(
            source["name"] for source in recipe.get("source", ()) if source.get("fragments", False)
        )


def made_at(out: Folder) -> str | None:
    """Where the output lay when its run made it; None where it has no recipe.

    DamagedFileError if the output's recipe cannot be read."""
    with _read_recipe(out) as recipe:
        return str(recipe["run"]["output"]) if recipe else None


def has_repeats(out: Folder) -> bool:
    """Whether an epoch of training reads some documents another number of times than once (`repeat.by`).

    DamagedFileError if the output's recipe cannot be read."""
    with _read_recipe(out) as recipe:
        return recipe.get("repeat", {}).get("by") is not None


@contextmanager
def _read_recipe(out: Folder) -> Iterator[dict[str, Any]]:
    """The output's recipe, empty where it has none; what is wrong with it is a DamagedFileError, where it is
    used too."""
    try:
        yield tomllib.loads(out.read(RECIPE_FILE).decode()) if out.exists(RECIPE_FILE) else {}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{out.at(RECIPE_FILE)} is damaged: {error}. Run sluice verify") from error
