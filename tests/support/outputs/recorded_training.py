"""Facts of a training run in the store of a finished OUT, as if it had trained; no weights, no checkpoint."""

from __future__ import annotations

import json

import pyarrow as pa

from lineage.index.output_index import read_index
from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.delta import append, append_run
from trainer.order import ORDER_VERSION, OrderOptions, plan_order
from trainer.provenance.facts import FACTS_FILE
from trainer.telemetry.metrics_file import METRICS_FILE
from trainer.telemetry.step_report import StepReport

OPTIONS = OrderOptions(seed=1, seq_len=64, global_batch=2, window_blocks=1, mixture_block=8)


def record_training(
    out: Folder, output: str, run: str = "seen", *, died: bool = False, options: OrderOptions = OPTIONS
) -> int:
    """Record `run`, which lies at `output` and read the whole of `out` once, and return its last step. One
    that `died` before its first checkpoint has no step in the store: its output has the facts, and the steps
    in metrics.jsonl."""
    index = read_index(out)
    lengths: dict[str, list[int]] = {}
    repeats: dict[str, list[int]] = {}
    for shard in sorted(index.shards, key=lambda shard: (shard.source, shard.shard)):
        lengths.setdefault(shard.source, []).append(shard.num_tokens)
        repeats.setdefault(shard.source, []).append(shard.repeats)
    plan = plan_order(lengths, options, repeats)
    last = (
        sum(-(-shard.num_tokens // options.seq_len) * shard.repeats for shard in index.shards)
        // options.global_batch
    )
    row = {
        "run": run,
        "output": output,
        "plan_fingerprint": plan.fingerprint(1 << 62),
        "order_version": ORDER_VERSION,
        "seed": options.seed,
        "seq_len": options.seq_len,
        "global_batch": options.global_batch,
        "plan": plan.to_json(),
    }
    append_run(out, _table("training_runs", row).drop_columns(["fact"]))
    segment = {
        "run": run,
        "attempt": 1,
        "content_fingerprint": index.content_fingerprint,
        "first_sequence": 0,
        "first_step": 0,
        "last_step": -1 if died else last,
        "skipped_steps": json.dumps([]),
        "fact": 0,
        "last_checkpoint": 0,
        "prefix": "",
    }
    append(out, "training_segments", _table("training_segments", segment), f"{run}:training_segments:0")
    if died:
        more: dict[str, object] = {
            "parent_attempt": None,
            "out": out.url,
            "weights": [],
            "skipped_steps": [],
        }
        own = {name: value for name, value in segment.items() if name != "fact"} | more
        facts = [{"fact": "run", **row}, {"fact": "segment", **own}]
        reports = [StepReport(step=step, attempt=1, loss=1.0).as_json() for step in range(last + 1)]
        Folder(output).publish(FACTS_FILE, "".join(json.dumps(fact) + "\n" for fact in facts).encode())
        Folder(output).publish(METRICS_FILE, "".join(f"{report}\n" for report in reports).encode())
    return last


def _table(name: str, row: dict[str, object]) -> pa.Table:
    schema = tables.SCHEMAS[name]
    return pa.Table.from_pylist([{column: row.get(column) for column in schema.names}], schema=schema)
