"""What planning, applying and verifying take as functions, for a small OUT."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.parquet as pq

import pipeline.inspect.hooks
from lineage.index.output_index import Index
from lineage.purge.execution import ApplyHooks, PurgeRequest
from lineage.purge.plan import PlanHooks, PurgeMatch
from lineage.storage.folder import Folder
from lineage.store.delta import read_table
from lineage.verify.problems import VerifyHooks
from tests.support.outputs.small_out.records import THRESHOLD, similarity


def render_plainly(out: Folder) -> bytes:
    """A report that shows every excerpt and every purge, as the real one does."""
    with out.open("excerpts.parquet") as file:
        shown = [f"{row['rule']}: {row['excerpt']}" for row in pq.read_table(file).to_pylist()]
    shown += [f"purged: {purge_id}" for purge_id in sorted(read_table(out, "purges")["purge_id"].to_pylist())]
    return ("<html>" + "".join(f"<p>{line}</p>" for line in shown) + "</html>").encode()


def stale_report(out: Folder, _index: Index) -> str | None:
    """What `verify` is told of a report that is not what would be rendered now."""
    return None if out.read("report.html") == render_plainly(out) else "shows another state"


def verify_hooks() -> VerifyHooks:
    """What proving a small OUT whole needs."""
    return VerifyHooks(jaccard=similarity, stale_report=stale_report)


def plan_hooks() -> PlanHooks:
    """What planning a purge of a small OUT needs."""
    return PlanHooks(resembles=lambda left, right: similarity(left, right) >= THRESHOLD)


def apply_hooks(notify: Callable[[str], None] = lambda _line: None) -> ApplyHooks:
    """What applying one needs."""
    return ApplyHooks(
        render=render_plainly,
        drop_cached=lambda _folder, _hashes: True,
        clean_export=lambda _out, _index, row: row,
        notify=notify,
    )


def ordered(match: PurgeMatch) -> PurgeRequest:
    """An order to purge what `match` names."""
    return PurgeRequest(match=match, by="a test", reason="to see it gone")


def set_hooks() -> None:
    """Let the commands of this process plan and apply with the hooks of a small OUT."""
    pipeline.inspect.hooks.apply_hooks = apply_hooks
    pipeline.inspect.hooks.plan_hooks = lambda out: plan_hooks()
