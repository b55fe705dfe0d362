"""How often an epoch reads the documents of an output, and what [repeat] has to come to."""

from __future__ import annotations

import math
import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from lineage.index.output_index import Shard, publish_index, read_index
from lineage.storage.folder import Folder
from tests.support.outputs.lineage_query import query
from tests.support.outputs.runs import summary_of

Row = tuple[str, int] | tuple[str, str, int]
"""The source of the shards, the name of the language's own table where it has one, and a first size or
bucket."""


def ask(out: Path, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in query(Folder(str(out)), sql).rows]


def times_on_disk(out: Path) -> dict[str, int]:
    """How often an epoch reads each kept document, by what the index says of its shard."""
    shards = {(shard.source, shard.shard): shard.repeats for shard in read_index(Folder(str(out))).shards}
    rows = ask(out, "SELECT doc_id, source, shard FROM placements")
    return {doc_id: shards[source, shard] for doc_id, source, shard in rows}


def assert_exact(out: Path, row_of: dict[str, Row], times: dict[Row, Fraction]) -> None:
    """Each document of a row is read ⌊times⌋ times or once more, and all of them together times × their
    number, as run.json says."""
    found = defaultdict(list)
    for doc_id, each in times_on_disk(out).items():
        found[row_of[doc_id]].append(each)
    said = {
        tuple(size[name] for name in ("source", "language", "first") if name in size): size
        for size in summary_of(str(out))["repeats"]
    }
    assert said.keys() == found.keys()
    for row, all_times in found.items():
        wanted, num = times[row], len(all_times)
        assert set(all_times) <= {math.floor(wanted), math.ceil(wanted)}
        assert sum(all_times) == math.floor(wanted * num + Fraction(1, 2))
        assert (said[row]["num_documents"], said[row]["num_readings"]) == (num, sum(all_times))


def edited(out: Path, change: Callable[[list[Shard]], list[Shard]]) -> Folder:
    """The output with its shards changed in index.json, sealed anew as whoever changes it would."""
    folder = Folder(str(out))
    index = read_index(folder)
    publish_index(folder, replace(index, shards=tuple(change(list(index.shards)))))
    return folder


def shuffled_copy(inputs: Path, to: Path) -> Path:
    """The folder's JSON lines in another order, in a folder that is not there."""
    shutil.copytree(inputs, to)
    for file in to.glob("*.jsonl"):
        lines = file.read_text().splitlines(keepends=True)
        random.Random(1).shuffle(lines)
        file.write_text("".join(lines))
    return to
