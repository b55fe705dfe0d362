"""The names of the formats, without what it takes to write them: the help of the command is printed at
once."""

from __future__ import annotations

from typing import Final

FORMAT_NAMES: Final = (
    "jsonl", "parquet", "hf", "nanochat", "mds", "megatron", "olmo", "llmc", "litdata", "warc",
)  # fmt: skip
