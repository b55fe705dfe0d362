"""Readers of export formats, written from their specifications and sharing nothing with what writes them.

Each gives (doc_id in hex, text) or (doc_id in hex, tokens) of every document of a folder, in whatever
order."""

from __future__ import annotations

import csv
import glob
import gzip
import itertools
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import yaml
import zstandard
from fastwarc.warc import ArchiveIterator

Text = tuple[str, str]
Tokens = tuple[str, list[int]]


def read_jsonl(folder: Path) -> Iterator[Text]:
    for path in sorted(folder.rglob("*.jsonl.zst")):
        data = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        for line in data.decode().split("\n")[:-1]:
            row = json.loads(line)
            yield row["id"], row["text"]


def read_parquet(folder: Path) -> Iterator[Text]:
    for path in sorted(folder.rglob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            yield row["id"], row["text"]


def read_hf(folder: Path, config: str = "default") -> dict[str, list[dict[str, Any]]]:
    """The rows of each split, found as README.md says (docs/hub/datasets-manual-configuration)."""
    head = (folder / "README.md").read_text().split("---\n")[1]
    wanted = next(entry for entry in yaml.safe_load(head)["configs"] if entry["config_name"] == config)
    return {
        entry["split"]: [
            row
            for path in sorted(glob.glob(str(folder / entry["path"])))
            for row in pq.read_table(path).to_pylist()
        ]
        for entry in wanted["data_files"]
    }


def read_nanochat(folder: Path) -> tuple[list[str], list[str]]:
    """The texts of the training files, and those of the last file in order of name, which is for
    validation."""
    paths = sorted(folder.glob("*.parquet"))
    texts = [pq.read_table(path)["text"].to_pylist() for path in paths]
    return [text for of_file in texts[:-1] for text in of_file], texts[-1]


def read_megatron(folder: Path) -> Iterator[Tokens]:
    """indexed_dataset.py: magic, version, dtype, number of sequences and documents, then lengths, places,
    documents."""
    for path in sorted(folder.rglob("*.idx")):
        data = path.read_bytes()
        assert data[:9] == b"MMIDIDX\x00\x00"
        version, code, num, num_documents = struct.unpack("<QBQQ", data[9:34])
        assert (version, num_documents) == (1, num + 1) and len(data) == 42 + 20 * num
        dtype = {4: np.dtype("<i4"), 8: np.dtype("<u2")}[code]
        lengths = np.frombuffer(data, "<i4", num, 34)
        places = np.frombuffer(data, "<i8", num, 34 + 4 * num)
        assert np.frombuffer(data, "<i8", num + 1, 34 + 12 * num).tolist() == list(range(num + 1))
        bin_data = path.with_suffix(".bin").read_bytes()
        ids = pq.read_table(path.with_suffix(".documents.parquet"))["doc_id"].to_pylist()
        for doc_id, length, place in zip(ids, lengths.tolist(), places.tolist(), strict=True):
            yield doc_id, np.frombuffer(bin_data, dtype, length, place).tolist()


def read_olmo(folder: Path, dtype: str) -> Iterator[Tokens]:
    """A raw array, and rows `start,end,id,src,loc`."""
    for path in sorted(folder.rglob("*.npy")):
        array = np.memmap(path, dtype=dtype, mode="r")
        lines = gzip.decompress(path.with_suffix(".csv.gz").read_bytes()).decode().splitlines()
        rows = list(csv.reader(lines))
        assert int(rows[-1][1]) == len(array) and rows[0][0] == "0"
        for start, end, doc_id, _, _ in rows:
            yield doc_id, array[int(start) : int(end)].tolist()


def read_llmc(folder: Path) -> Iterator[Tokens]:
    """256 int32: magic, version, number of tokens; then the tokens."""
    for path in sorted(folder.glob("*.bin")):
        data = path.read_bytes()
        magic, version, num = struct.unpack("<3i", data[:12])
        dtype = {(20240520, 1): "<u2", (20240801, 7): "<u4"}[magic, version]
        tokens = np.frombuffer(data, dtype, offset=1024)
        assert len(tokens) == num and data[12:1024] == bytes(1012)
        for row in pq.read_table(path.with_suffix(".documents.parquet")).to_pylist():
            yield row["doc_id"], tokens[row["start"] : row["start"] + row["num_tokens"]].tolist()


def _samples(data: bytes, gap: int = 0) -> Iterator[bytes]:
    """uint32 count, uint32 places (one more), a gap of that many bytes, samples."""
    num = struct.unpack("<I", data[:4])[0]
    places = np.frombuffer(data, "<u4", num + 1, 4).tolist()
    assert places[0] == 4 + 4 * (num + 1) + gap and places[-1] == len(data)
    for first, end in itertools.pairwise(places):
        yield data[first:end]


def read_mds(folder: Path) -> Iterator[dict[str, Any]]:
    """Streaming's shards, as index.json lists them."""
    index = json.loads((folder / "index.json").read_text())
    assert index["version"] == 2
    for shard in index["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"] and shard["column_names"] == sorted(
            shard["column_names"]
        )
        keys = (
            "column_encodings",
            "column_names",
            "column_sizes",
            "compression",
            "format",
            "hashes",
            "size_limit",
        )
        config = json.dumps({**{key: shard[key] for key in keys}, "version": 2}, sort_keys=True).encode()
        num = shard["samples"]
        assert data[4 + 4 * (num + 1) :].startswith(config)
        for sample in _samples(data, len(config)):
            yield _mds_sample(shard, sample)


def _mds_sample(shard: dict[str, Any], sample: bytes) -> dict[str, Any]:
    variable = [
        name for name, size in zip(shard["column_names"], shard["column_sizes"], strict=True) if size is None
    ]
    sizes = dict(zip(variable, np.frombuffer(sample, "<u4", len(variable)).tolist(), strict=True))
    at, values = 4 * len(variable), {}
    columns = zip(shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True)
    for name, encoding, size in columns:
        piece = sample[at : at + (sizes[name] if size is None else size)]
        at += len(piece)
        values[name] = _mds_value(encoding, piece)
    assert at == len(sample)
    return values


def _mds_value(encoding: str, piece: bytes) -> Any:
    if encoding == "str":
        return piece.decode()
    if encoding in ("int", "float64"):
        return np.frombuffer(piece, {"int": "<i8", "float64": "<f8"}[encoding])[0].item()
    kind, num_axes = piece[0] & 3, piece[0] >> 2
    assert num_axes == 1
    length = int.from_bytes(piece[1 : 1 + (1 << kind)], "little")
    values: npt.NDArray[Any] = np.frombuffer(piece, encoding.removeprefix("ndarray:"), offset=1 + (1 << kind))
    assert len(values) == length
    return values.tolist()


def read_litdata(folder: Path) -> Iterator[list[int]]:
    """LitData's chunks, as index.json lists them: tokens of each item, without ids."""
    index = json.loads((folder / "index.json").read_text())
    dtype = {"no_header_tensor:20": "<u2", "no_header_tensor:16": "<i4"}[index["config"]["data_format"][0]]
    for chunk in index["chunks"]:
        data = (folder / chunk["filename"]).read_bytes()
        items = [np.frombuffer(item, dtype).tolist() for item in _samples(data)]
        assert (len(data), len(items)) == (chunk["chunk_bytes"], chunk["chunk_size"])
        assert sum(map(len, items)) == chunk["dim"]
        yield from items


def read_warc(folder: Path) -> dict[str, bytes]:
    """The content of every record by its WARC-Record-ID, with its headers but for those of its packing."""
    return {
        key: value for path in sorted(folder.rglob("*.warc.gz")) for key, value in warc_records(path).items()
    }


def warc_records(path: Path) -> dict[str, bytes]:
    with path.open("rb") as stream:
        return {
            record.headers["WARC-Record-ID"]: record.headers["WARC-Target-URI"].encode()
            + record.reader.read()
            for record in ArchiveIterator(stream, parse_http=False)
            if "WARC-Target-URI" in record.headers
        }
