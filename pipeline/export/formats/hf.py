"""hf: a dataset repository for the Hugging Face Hub: FineWeb's columns as Parquet, and a README.md that says
where each configuration and split lies (https://huggingface.co/docs/hub/datasets-manual-configuration)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from lineage.exports.manifest import ExportedFile
from pipeline.export.formats.parquet import TextRows, text_rows
from pipeline.export.sink import ExportSink
from pipeline.export.texts import COLUMNS, TextRow, write_texts
from pipeline.export.units import ExportJob, ExportUnit

_ONLY_SPLIT = "train"
_OF_ALL = "default"
_NAMES = {"source": "dump"}
"""FineWeb names the crawl of a document so."""
_ORDER = (
    "text",
    "id",
    "dump",
    "url",
    "date",
    "file_path",
    "offset",
    "language",
    "language_score",
    "metadata",
)
_ADDED = ("record_id",)
"""Behind FineWeb's columns."""
_SCHEMA = pa.schema(
    [(name, COLUMNS.field("source" if name == "dump" else name).type) for name in (*_ORDER, *_ADDED)]
)


def write(job: ExportJob, unit: ExportUnit, sink: ExportSink) -> None:
    """data/<source>/<split>-NNNNN.parquet"""
    write_texts(job, unit, sink, _open)


def _open(
    sink: ExportSink, _job: ExportJob, unit: ExportUnit, split: str
) -> AbstractContextManager[TextRows]:
    name = unit.name(".parquet", split or _ONLY_SPLIT, folder="data")
    return text_rows(sink, name, split, _SCHEMA, _columns)


def _columns(row: TextRow) -> dict[str, object]:
    return {_NAMES.get(name, name): value for name, value in row.plain().items()}


def index_files(_job: ExportJob, files: Sequence[ExportedFile]) -> dict[str, bytes]:
    """README.md: its first lines are YAML that `datasets` and the Hub read. One configuration of all sources,
    and one of each where there are several. That of a source named as the one of all is `_default`, which
    names no source."""
    sources = sorted({file.file.split("/")[1] for file in files})
    splits = sorted(
        {file.split or _ONLY_SPLIT for file in files}, key=lambda name: (name != _ONLY_SPLIT, name)
    )
    own = (
        {"_default" if source == _OF_ALL else source: source for source in sources}
        if len(sources) > 1
        else {}
    )
    configs = {_OF_ALL: "*"} | own
    lines = ["---", "configs:"]
    for config, folder in configs.items():
        lines += [f"- config_name: {json.dumps(config)}", "  data_files:"]
        for split in splits:
            if folder == "*" or any(file.file.startswith(f"data/{folder}/{split}-") for file in files):
                path = json.dumps(f"data/{folder}/{split}-*.parquet")
                lines += [f"  - split: {json.dumps(split)}", f"    path: {path}"]
    num = sum(file.num_documents for file in files)
    lines += ["---", "", f"{num:,} documents, deduplicated, from {', '.join(sources) or 'no source'}.", ""]
    lines += [
        "`id` names a document in the lineage of the corpus; `file_path` and `offset` say where in the crawl its"
    ]
    lines += ["record begins, `record_id` what the crawl calls it.", ""]
    return {"README.md": "\n".join(lines).encode()}
