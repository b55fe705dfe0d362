"""Recipes and models that come with Sluice and are no code."""

from __future__ import annotations

import functools
import site
import sysconfig
from pathlib import Path

from lineage.recipe import RecipeError


@functools.cache
def shipped_folder(name: str) -> Path:
    """The folder `name` of recipes/: in a checkout, or where an installation puts it. RecipeError where it is in
    neither."""
    installed = (Path(sysconfig.get_path("data")), Path(site.getuserbase()))
    checkout = Path(__file__).parents[1]
    roots = [checkout / "recipes", *(each / "share/sluice/recipes" for each in (checkout, *installed))]
    found = next((root / name for root in roots if (root / name).is_dir()), None)
    if found is None:
        raise RecipeError(
            f"recipes/{name} is in none of {', '.join(map(str, roots))}: install sluice anew, with pip"
        )
    return found
