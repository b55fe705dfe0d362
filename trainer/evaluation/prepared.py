"""What an evaluation asks of a model, as tokens: whoever has a tokenizer prepares it, and the trainer reads it
(`<output>/evaluations/NAME.parquet`). No torch here.

A row of the file is an item: a text, or a question with its choices. Its requests are stretches of tokens of which
the model says how likely the last ones are: a choice behind its question, or a window of a text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lineage.recipe import RecipeError
from lineage.storage.folder import Folder

Kind = Literal["text", "choices"]

FOLDER: Final = "evaluations"
_SCHEMA: Final = pa.schema([
    ("answer", pa.int32()),
    ("num_bytes", pa.list_(pa.int64())),
    ("choice", pa.list_(pa.int32())),
    ("tokens", pa.list_(pa.list_(pa.uint32()))),
    ("num_scored", pa.list_(pa.int32())),
])  # fmt: skip
_ABOUT: Final = b"sluice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Tokens of which the last `num_scored` are scored, one or more stand before these. `choice`: which of the
    item's choices they hold; 0 for a text."""

    choice: int
    tokens: Sequence[int]
    num_scored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedItem:
    """An item: which choice is right (0 for a text), the bytes of each choice, or of the text, in UTF-8, and
    its requests."""

    answer: int
    num_bytes: tuple[int, ...]
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutPrepared:
    """What an evaluation was prepared from. `digest`: BLAKE3-128 (hex) of its files and of how they are asked;
    `texts`: that of what is looked for in the training data; `tokenizer`: the hash of its tokenizer; `seq_len`: tokens
    that a request has at most, less one that is only scored."""

    name: str
    kind: Kind
    digest: str
    texts: str
    files: tuple[str, ...]
    shots: int
    shots_from: str | None = None
    tokenizer: str
    seq_len: int


@dataclass(frozen=True)
class Prepared:
    """An evaluation as tokens."""

    about: AboutPrepared
    items: tuple[AskedItem, ...]

    @property
    def requests(self) -> Sequence[Request]:
        """Those of all items, in order."""
        return [request for item in self.items for request in item.requests]

    @cached_property
    def places(self) -> np.ndarray:
        """The item and the choice of each request, (num_requests, 2)."""
        found = [(number, r.choice) for number, item in enumerate(self.items) for r in item.requests]
        return np.array(found, np.int64).reshape(-1, 2)


def prepared_name(name: str) -> str:
    """Where an evaluation of that name lies in the output of a run."""
    return f"{FOLDER}/{name}.parquet"


def publish_prepared(output: Folder, prepared: Prepared) -> None:
    """Write an evaluation into the output of a run."""
    columns = {
        "answer": [item.answer for item in prepared.items],
        "num_bytes": [item.num_bytes for item in prepared.items],
        "choice": [[each.choice for each in item.requests] for item in prepared.items],
        "tokens": [[each.tokens for each in item.requests] for item in prepared.items],
        "num_scored": [[each.num_scored for each in item.requests] for item in prepared.items],
    }
    about = json.dumps(asdict(prepared.about)).encode()
    table = pa.table(columns, schema=_SCHEMA.with_metadata({_ABOUT: about}))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    output.publish(prepared_name(prepared.about.name), sink.getvalue().to_pybytes())


def read_prepared(output: Folder, name: str) -> Prepared:
    """An evaluation of the run at `output`. RecipeError where it is not prepared."""
    file = prepared_name(name)
    if not output.exists(file):
        raise RecipeError(
            f"train.eval: {name!r} is not prepared ({output.at(file)} is not there): `sluice train RECIPE"
            " --prepare` tokenizes and scans it, which `sluice train` does by itself",
            "train.eval",
        )
    table = pq.read_table(pa.BufferReader(output.read(file)))
    about = json.loads(table.schema.metadata[_ABOUT])
    return Prepared(
        AboutPrepared(**about | {"files": tuple(about["files"])}), tuple(_items(table.to_pylist()))
    )


def _items(rows: Iterable[dict[str, list[int]]]) -> Iterable[AskedItem]:
    for row in rows:
        requests = zip(row["choice"], row["tokens"], row["num_scored"], strict=True)
        yield AskedItem(
            answer=row["answer"],  # type: ignore[arg-type]
            num_bytes=tuple(row["num_bytes"]),
            requests=tuple(
                Request(choice=choice, tokens=tokens, num_scored=scored)  # type: ignore[arg-type]
                for choice, tokens, scored in requests
            ),
        )
