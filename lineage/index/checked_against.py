"""Against which benchmarks the data of an output was checked: what `[decontaminate]` of its recipe named,
with the hashes of these files as the run recorded them (run.json)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lineage.storage.folder import Folder

_RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAgainst:
    """A benchmark that the step `decontaminate` of a data run looked for. `digest`: BLAKE3-128 (hex) of the
    file's bytes; `sources`: those whose steps have it."""

    file: str
    digest: str
    field: str
    ngram: str
    ratio: float
    sources: tuple[str, ...]


def checked_against(out: Folder) -> tuple[CheckedAgainst, ...]:
    """The benchmarks of an output, in its recipe's order; none where it has no run.json (one made by other
    tools)."""
    if not out.exists(_RUN_FILE):
        return ()
    identity = json.loads(out.read(_RUN_FILE)).get("identity")
    if identity is None:
        return ()
    table, sources = identity["recipe"]["decontaminate"], identity["recipe"]["source"]
    return tuple(
        CheckedAgainst(
            file=file,
            digest=identity["files"][file],
            field=table["field"],
            ngram=table["ngram"],
            ratio=table["ratio"],
            sources=tuple(source["name"] for source in sources if "decontaminate" in source["steps"]),
        )
        for file in table["against"]
    )
