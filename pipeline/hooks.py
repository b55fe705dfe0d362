"""What the lineage room takes from the rooms above, put together: for verify, purge and trace."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from lineage.index import Index, read_index
from lineage.lookup import Lookup
from lineage.problems import VerifyHooks
from lineage.purge import ApplyHooks
from lineage.purge_plan import PlanHooks
from lineage.storage import Folder
from lineage.store import read_table
from pipeline.facts import url_key
from pipeline.recipe import PipelineRecipe, recipe_of
from pipeline.report.render import render_output
from stages.dedup.shingles import jaccard, shingles
from trainer.cache.folder import CacheFolder


class Similarity:
    """The Jaccard similarity of two clean texts as the run at `out` measured it."""

    def __init__(self, recipe: PipelineRecipe) -> None:
        self._size, self.threshold = recipe.dedup.shingle, recipe.dedup.threshold

    def __call__(self, left: str, right: str) -> float:
        return jaccard(shingles(left, self._size), shingles(right, self._size))

    def resembles(self, left: str, right: str) -> bool:
        """Whether two texts count as near copies."""
        return self(left, right) >= self.threshold


class Earlier:
    """The outputs that a run compared with (`dedup.against`)."""

    def __init__(self, against: Sequence[str]) -> None:
        self._lookups = [(url, Lookup(Folder(url))) for url in against]

    def find(self, doc_id: bytes) -> str | None:
        """The output that holds a document, None where none does."""
        return next((url for url, lookup in self._lookups if lookup.documents([doc_id])), None)

    def holds(self, doc_id: bytes) -> bool:
        """Whether any of them holds it."""
        return self.find(doc_id) is not None


def verify_hooks(out: Folder) -> VerifyHooks:
    """What `verify` needs."""
    recipe = recipe_of(out)
    return VerifyHooks(
        jaccard=Similarity(recipe), url_key=url_key, known_elsewhere=Earlier(recipe.dedup.against).holds
    )  # fmt: skip


def plan_hooks(out: Folder) -> PlanHooks:
    """What planning a purge needs."""
    recipe = recipe_of(out)
    return PlanHooks(
        url_key=url_key, resembles=Similarity(recipe).resembles, find_elsewhere=Earlier(recipe.dedup.against).find
    )  # fmt: skip


def apply_hooks() -> ApplyHooks:
    """What applying a purge needs."""
    return ApplyHooks(render=lambda out: render_output(out, read_index(out)), drop_cached=drop_cached)


def drop_cached(out: Folder, index: Index) -> None:
    """Drop from this host's caches, as training runs recorded them, what `index` does not name."""
    sweeps = read_table(out, "cache_sweeps").select(["host", "folder"]).to_pylist()
    hashes = {shard.hash for shard in index.shards}
    for folder in sorted({sweep["folder"] for sweep in sweeps if sweep["host"] == socket.gethostname()}):
        if os.path.isdir(folder):
            CacheFolder(folder, 0).prepare(hashes)
