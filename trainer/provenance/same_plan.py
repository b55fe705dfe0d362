"""Whether a run's newest checkpoint was made in the order that its recipe gives now; if not, by which key. No
torch."""

from __future__ import annotations

from collections.abc import Iterator

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder
from trainer.order import ORDER_VERSION, OrderPlan
from trainer.provenance.facts import FactLog, RunFact

_KEYS = {
    "seed": "train.seed",
    "seq_len": "train.seq_len",
    "global_batch": "train.global_batch",
    "window_blocks": "train.order.window_blocks",
    "validation": "train.validation",
}


def check_same_plan(
    output: Folder, plan: OrderPlan, *, step: int, order_version: int, fingerprint: str
) -> None:
    """RecipeError, which names each key that is another, where the checkpoint of `step` steps in `output` was
    made in another order than that of `plan`: its order's version and its plan's fingerprint are these."""
    if (order_version, fingerprint) == (ORDER_VERSION, plan.fingerprint(step * plan.global_batch)):
        return
    if order_version != ORDER_VERSION:
        raise RecipeError(
            f"the newest checkpoint (step {step}) of {output.url} was made with order version"
            f" {order_version}, and this release has version {ORDER_VERSION}: go on with the release that"
            " made it, or name another train.output"
        )
    made = [found for found in _plans(output) if found.fingerprint(step * found.global_batch) == fingerprint]
    differing = list(_differing(plan, made[-1], step)) if made else []
    first = next(iter(differing), ("train", ""))[0]
    lines = (
        "; ".join(line for _, line in differing)
        or "data, sizes, seed or a past mixture are not what they were"
    )
    raise RecipeError(
        f"{lines}. {output.url} has a checkpoint of {step} steps made so, and a run keeps its order: restore"
        " it, or give the changed run another train.output",
        first,
    )


def _plans(output: Folder) -> Iterator[OrderPlan]:
    """The plans that the run has written down, oldest first."""
    for _, fact in FactLog(output).facts():
        if isinstance(fact, RunFact) and fact.order_version == ORDER_VERSION:
            yield OrderPlan.from_json(fact.plan)


def _differing(now: OrderPlan, was: OrderPlan, step: int) -> Iterator[tuple[str, str]]:
    """By key: a sentence."""
    for name, key in _KEYS.items():
        ours, theirs = getattr(now, name), getattr(was, name)
        if ours != theirs:
            yield key, f"{key} is {ours} now and was {theirs}"
    ours, theirs = dict(now.lengths), dict(was.lengths)
    for source in sorted(ours.keys() | theirs.keys()):
        if ours.get(source) != theirs.get(source):
            now_has, had = _size(ours.get(source)), _size(theirs.get(source))
            yield "train.data", f"train.data: source {source} has {now_has} now and had {had}"
    now_read, were_read = dict(now.repeats), dict(was.repeats)
    for source in sorted(now_read.keys() | were_read.keys()):
        if now_read.get(source) != were_read.get(source) and ours.get(source) == theirs.get(source):
            yield (
                "train.data",
                f"train.data: an epoch reads shards of source {source} another number of times",
            )
    for segment in was.segments:
        reached = segment.first_step == 0 or segment.first_step < step
        if reached and segment not in now.segments:
            shares = ", ".join(f"{source} {count}" for source, count in segment.counts)
            yield (
                "train.mixture",
                f"train.mixture is another from step {segment.first_step} on, where it was {shares} of"
                f" {sum(count for _, count in segment.counts)} sequences",
            )


def _size(shards: tuple[int, ...] | None) -> str:
    return "no token" if shards is None else f"{sum(shards):,} tokens in {len(shards):,} shards"
