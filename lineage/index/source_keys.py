"""What an output's recipe says of its sources that decides which documents are of one page."""

from __future__ import annotations

import tomllib

from lineage.index.checksums import DamagedFileError
from lineage.index.names import RECIPE_FILE
from lineage.storage.folder import Folder


def sources_with_fragments(out: Folder) -> frozenset[str]:
    """The sources in which URLs that differ in the fragment alone are different pages (`source.fragments`).

    DamagedFileError if the output's recipe cannot be read."""
    if not out.exists(RECIPE_FILE):
        return frozenset()
    try:
        recipe = tomllib.loads(out.read(RECIPE_FILE).decode())
        return frozenset(
            source["name"] for source in recipe.get("source", ()) if source.get("fragments", False)
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{out.at(RECIPE_FILE)} is damaged: {error}. Run sluice verify") from error
