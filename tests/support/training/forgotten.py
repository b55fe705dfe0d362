"""A training run over a small OUT, documents that it read at known steps, and their purge."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.rows import ShardSpan
from lineage.trace.exposure import exposures, fold
from stages.tokens.tokenizer import load_tokenizer, train_bpe
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.small_out.output import SmallOut, make_small_out
from tests.support.outputs.small_out.records import Record, make_records
from tests.support.training.training_runs import Run
from trainer.checkpoint.state import held_tensors, load
from trainer.provenance.exposure import find_readings
from trainer.provenance.reached import read_facts
from trainer.recovery.readings import find_purges, readings

CHANGES: Mapping[str, Any] = {
    "seq_len": 64, "global_batch": 4, "steps": 10, "dtype": "float32", "checkpoint": {"every": 2, "keep": 10},
    "optimizer": {"lr": 3e-3, "warmup_steps": 2},
}  # fmt: skip

HARD: Mapping[str, Any] = {
    "micro_batch": 1,
    "validation": 0.1,
    "eval_every": 3,
    "skip": [[13, 13]],
    "faults": {"nan_at_step": [6]},
    "mixture": [
        {"first_step": 0, "weights": {"web": 0.75, "books": 0.25}},
        {"first_step": 7, "weights": {"web": 0.5, "books": 0.5}},
    ],
    "order": {"mixture_block": 4},
}
"""Validation, accumulation, a listed and a non-finite step, and a mixture that changes."""

LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "ddp": {"workers": 2, "zero": 0},
    "zero 1": {"workers": 2, "zero": 1},
    "zero 3": {"workers": 2},
    "hsdp": {"parallel": {"dp_replicate": 2, "dp_shard": 2}},
    "tp": {"parallel": {"tp": 2}},
    "tp and dp": {"parallel": {"dp_shard": 2, "tp": 2}},
    "pp": {"parallel": {"pp": 2}},
    "ep": {"model": "moe-debug", "parallel": {"dp_shard": 2, "ep": 2}},
}
NUM_DOCUMENTS = 5
"""What is forgotten in each layout, a replay each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A copy of a small OUT in `folder`, and the run `name` over it."""

    small: SmallOut
    folder: Path
    name: str = "run"
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Folder:
        return Folder(str(self.folder / "out"))

    @property
    def run(self) -> Run:
        return Run(data=self.out.url, output=self.folder / self.name, changes={**CHANGES, **self.changes})

    def first_steps(self) -> dict[bytes, int]:
        """The first step in which the run read each document that stands in a shard."""
        more = read_facts([str(self.run.output)], self.out.url)
        (training,) = fold(more.runs, more.segments)
        ids = [record.doc_id for record in self.small.records if record.status == "kept"]
        found = {}
        for row in Lookup(self.out).documents(ids):
            if row.shard is not None and row.start is not None and row.num_tokens is not None:
                steps = [
                    e.step
                    for e in exposures(
                        training, ShardSpan(row.source, row.shard, row.start, row.num_tokens), find_readings
                    )
                ]
                if steps:
                    found[row.doc_id] = min(steps)
        return found

    def record_first_read_in(self, steps: range) -> Record:
        """A document that the run first read in one of these steps."""
        first = self.first_steps()
        return next(r for r in self.small.records if first.get(r.doc_id, -1) in steps)

    def records_first_read_in(self, steps: range) -> list[Record]:
        """NUM_DOCUMENTS documents that the run first read in these steps, spread over the shards."""
        first = self.first_steps()
        readable = [record for record in self.small.records if first.get(record.doc_id, -1) in steps]
        chosen = readable[:: len(readable) // NUM_DOCUMENTS][:NUM_DOCUMENTS]
        assert len(chosen) == NUM_DOCUMENTS and len({first[record.doc_id] for record in chosen}) > 1
        return chosen

    def purge(self, *records: Record) -> str:
        """Purge them; gives the purge's id."""
        purge_id = purge(self.out, by_doc(*records)).purge_id
        assert purge_id is not None
        return purge_id


def make_few_ids_out(folder: Path) -> SmallOut:
    """A small OUT in `folder`/out of few ids, so that a model's checkpoints are small."""
    texts = [record.text for record in make_records()[0]]
    (folder / "few.tiktoken").write_bytes(train_bpe(texts, 512))
    return make_small_out(str(folder / "out"), tokenizer=load_tokenizer(str(folder / "few.tiktoken")))


def copy_out(small: SmallOut, folder: Path) -> None:
    """A copy of the small OUT as `folder`/out."""
    shutil.copytree(small.folder.url, folder / "out")


def tensors(trained: Trained) -> dict[str, torch.Tensor]:
    """Weights, moments and counts of the newest checkpoint."""
    (newest,) = sorted((trained.run.output / "checkpoints").glob("step-*"))[-1:]
    folder = Folder(str(newest))
    state: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in held_tensors(folder).items()
    }
    load(folder, state, None)
    return state


def assert_equal(one: Trained, other: Trained) -> None:
    ours, theirs = tensors(one), tensors(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert one.run.losses() == other.run.losses()


def applied(trained: Trained) -> list[bool]:
    """Whether each reading of what was purged is in the run's model."""
    (purged,) = find_purges([trained.out.url], ["all"])
    runs = [run for run in purged.runs([str(trained.run.output)]) if run.run == str(trained.run.output)]
    return [exposure.applied for run in runs for _, exposure in readings(run, purged)]


def never_read(trained: Trained, name: str = "fresh") -> Trained:
    """A new run on the purged shards."""
    fresh = Trained(small=trained.small, folder=trained.folder, name=name, changes=trained.changes)
    assert fresh.run.start().finished
    return fresh
