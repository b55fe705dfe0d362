"""What lineage takes from the packages above it, put together: for verify, purge and trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from lineage.index.output_index import read_index
from lineage.purge.execution import ApplyHooks
from lineage.purge.plan import PlanHooks
from lineage.storage.folder import Folder
from lineage.trace.earlier import find_in
from lineage.verify.problems import VerifyHooks
from pipeline.inspect.repeats import wrong_repeats
from pipeline.recipe.load import recipe_of
from pipeline.report.render import render_output, stale_report
from stages.dedup.bands import bands_of
from stages.dedup.minhash import Signer
from stages.dedup.options import DedupTable
from stages.dedup.shingles import jaccard, shingles
from trainer.data.cache.folder import CacheFolder, DiskError

_log = logging.getLogger(__name__)


class Similarity:
    """The Jaccard similarity of two clean texts as a run with such a [dedup] measured it."""

    def __init__(self, table: DedupTable) -> None:
        self._table, self._signer = table, Signer(table)

    def __call__(self, left: str, right: str) -> float:
        return jaccard(shingles(left, self._table), shingles(right, self._table))

    def resembles(self, left: str, right: str) -> bool:
        """Whether two texts count as near copies."""
        if self._table.verify:
            return self(left, right) >= self._table.threshold
        return self.share_band(left, right)

    def share_band(self, left: str, right: str) -> bool:
        """Whether two texts are candidates."""
        signatures = [self._signer.signature(text) for text in (left, right)]
        bands = [bands_of(signature, self._table) for signature in signatures if signature is not None]
        return len(bands) == 2 and any(one == other for one, other in zip(*bands, strict=True))


def verify_hooks(out: Folder) -> VerifyHooks:
    """What `verify` needs. A damaged recipe.toml is for `verify` to name: similarities are then measured as
    the default [dedup] has it, and no earlier output is known."""
    try:
        table = recipe_of(out).dedup
    except (OSError, ValueError, LookupError):
        table = DedupTable()
    find = find_in(table.against)
    similarity = Similarity(table)
    return VerifyHooks(
        jaccard=similarity,
        share_band=None if table.verify else similarity.share_band,
        known_elsewhere=lambda doc_id: find(doc_id) is not None,
        stale_report=stale_report,
        wrong_repeats=wrong_repeats,
    )


def plan_hooks(out: Folder) -> PlanHooks:
    """What planning a purge needs."""
    table = recipe_of(out).dedup
    return PlanHooks(
        resembles=Similarity(table).resembles,
        find_elsewhere=find_in(table.against),
    )


def apply_hooks(notify: Callable[[str], None] = lambda _line: None) -> ApplyHooks:
    """What applying a purge needs; `notify` is told what was done, a line each."""
    from pipeline.export.clean import clean_export

    return ApplyHooks(
        render=lambda out: render_output(out, read_index(out)),
        drop_cached=drop_cached,
        clean_export=clean_export,
        notify=notify,
    )


def drop_cached(folder: str, hashes: Collection[str]) -> bool:
    """Drop from a cache folder of this host the blocks of shards not in `hashes`; False, and a warning, if
    its disk does not let us."""
    try:
        CacheFolder(folder, 0).prepare(hashes)
    except DiskError as error:
        _log.warning("the cache is not cleaned: %s", error)
        return False
    return True
