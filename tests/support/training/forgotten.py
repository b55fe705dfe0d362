"""A training run over a small OUT, documents that it read at known steps, and their purge."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineage.storage.folder import Folder
from lineage.store.lookup import Lookup
from lineage.store.rows import Span
from lineage.trace.exposure import exposures, fold
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.small_out.output import SmallOut
from tests.support.outputs.small_out.records import Record
from tests.support.training.training_runs import Run
from trainer.provenance.exposure import find_readings
from trainer.provenance.reached import read_facts

CHANGES: Mapping[str, Any] = {
    "seq_len": 64, "global_batch": 4, "steps": 10, "dtype": "float32", "checkpoint": {"every": 2, "keep": 10},
    "optimizer": {"lr": 3e-3, "warmup_steps": 2},
}  # fmt: skip


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
                    for e in exposures(training, Span(row.source, row.shard, row.start, row.num_tokens), find_readings)
                ]
                if steps:
                    found[row.doc_id] = min(steps)
        return found

    def record_first_read_in(self, steps: range) -> Record:
        """A document that the run first read in one of these steps."""
        first = self.first_steps()
        return next(r for r in self.small.records if first.get(r.doc_id, -1) in steps)

    def purge(self, *records: Record) -> str:
        """Purge them; gives the purge's id."""
        purge_id = purge(self.out, by_doc(*records)).purge_id
        assert purge_id is not None
        return purge_id


def copy_out(small: SmallOut, folder: Path) -> None:
    """A copy of the small OUT as `folder`/out."""
    shutil.copytree(small.folder.url, folder / "out")
