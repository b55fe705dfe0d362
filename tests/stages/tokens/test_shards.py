"""Shards: hash order, cuts and merges do not depend on how the documents were divided."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.ids import content_hash, tokens_hash
from lineage.index.blocks import BLOCK_BYTES, block_digest
from lineage.storage.folder import Folder
from stages.tokens import shards
from stages.tokens.shards import (
    RangeReader,
    RunSlice,
    ShardOutputs,
    cut,
    cut_group,
    merge_runs,
    place_group,
    publish_shard,
    shuffle_key,
    slice_bytes,
    write_run,
    write_shard,
)

EOT = 9


class CodePoints:
    """An encoder whose ids are easy to see."""

    eot_id = EOT

    def encode_batch(self, texts: Sequence[str], /) -> list[npt.NDArray[np.uint32]]:
        return [np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) for text in texts]


def doc_id(number: int) -> bytes:
    return content_hash(b"%d" % number)


Run = tuple[pa.Table, bytes]


def make_runs(texts: list[str], owner: list[int], seed: int = 0) -> list[Run]:
    runs = []
    for run in range(max(owner, default=-1) + 1):
        here = [i for i in range(len(texts)) if owner[i] == run]
        tokens = io.BytesIO()
        rows = write_run([(doc_id(i), texts[i]) for i in here], CodePoints(), seed, tokens)
        runs.append((rows, tokens.getvalue()))
    return runs


def make_shards(
    runs: list[Run], shard_tokens: int
) -> list[tuple[bytes, bytes, bytes, tuple[int, int, str, str, str]]]:
    cuts = cut_group([rows for rows, _ in runs], shard_tokens)
    made = []
    for shard in range(len(cuts) - 1):
        slices = []
        for (rows, tokens), first, last in zip(runs, cuts[shard], cuts[shard + 1], strict=True):
            at, size = slice_bytes(rows, first, last)
            slices.append(
                RunSlice(rows=rows.slice(first, last - first), tokens=io.BytesIO(tokens[at : at + size]))
            )
        outputs = ShardOutputs(tokens=io.BytesIO(), blocks=io.BytesIO(), index=io.BytesIO())
        facts = write_shard(slices, outputs)
        made.append((*(f.getvalue() for f in (outputs.tokens, outputs.blocks, outputs.index)), facts))  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]


corpora = st.lists(st.text("abc", max_size=12), max_size=25)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), texts=corpora, shard_tokens=st.integers(1, 40), seed=st.integers(0, 3))
def test_any_division_into_runs_gives_the_same_shards(
    data: st.DataObject, texts: list[str], shard_tokens: int, seed: int
) -> None:
    owner = data.draw(st.lists(st.integers(0, 5), min_size=len(texts), max_size=len(texts)))
    together = make_shards(make_runs(texts, [0] * len(texts), seed), shard_tokens)
    assert make_shards(make_runs(texts, owner, seed), shard_tokens) == together


@settings(max_examples=100, deadline=None)
@given(data=st.data(), texts=corpora.filter(bool))
def test_runs_merge_into_the_run_of_all_their_documents(data: st.DataObject, texts: list[str]) -> None:
    owner = data.draw(st.lists(st.integers(0, 5), min_size=len(texts), max_size=len(texts)))
    [(rows, tokens)] = make_runs(texts, [0] * len(texts))
    numbered = {doc_id(number): number for number in range(len(texts))}

    def with_number(of_run: pa.Table) -> pa.Table:
        numbers = [numbered[each] for each in of_run["doc_id"].to_pylist()]
        return of_run.append_column("number", pa.array(numbers, pa.int64()))

    merged = io.BytesIO()
    found = merge_runs(
        [
            RunSlice(rows=with_number(run), tokens=io.BytesIO(of_run))
            for run, of_run in make_runs(texts, owner)
        ],
        merged,
    )
    assert merged.getvalue() == tokens
    assert found.to_pydict() == with_number(rows).to_pydict(), (
        "columns of a caller's own stay with their rows"
    )


def test_a_run_holds_neither_the_texts_of_its_unit_nor_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_HELD_BYTES", 1 << 20)
    monkeypatch.setattr(shards, "_ENCODE_CHARS", 1 << 18)
    num, chars = 200, 1 << 16
    documents = ((doc_id(number), chr(256 + number) * chars) for number in range(num))
    with (tmp_path / "tokens.bin").open("wb") as tokens:
        write_run([(doc_id(0), "a")], CodePoints(), 0, io.BytesIO())  # so that all it imports is there
        tracemalloc.start()
        rows = write_run(documents, CodePoints(), 0, tokens)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < num * chars / 2
    found = np.memmap(tmp_path / "tokens.bin", np.uint32).reshape(num, chars + 1)
    expected = {doc_id(number): 256 + number for number in range(num)}
    assert found[:, 0].tolist() == [expected[key] for key in rows["doc_id"].to_pylist()]
    assert (found[:, :-1] == found[:, :1]).all() and (found[:, -1] == EOT).all()


@settings(max_examples=150, deadline=None)
@given(texts=corpora, shard_tokens=st.integers(1, 40))
def test_placements_tile_each_shard_and_hold_each_document_once(texts: list[str], shard_tokens: int) -> None:
    seen = []
    for tokens_file, _, index_file, facts in make_shards(make_runs(texts, [0] * len(texts)), shard_tokens):
        tokens = np.frombuffer(tokens_file, dtype="<u4")
        end = 0
        for row in pq.read_table(io.BytesIO(index_file)).to_pylist():
            assert row["start"] == end
            end += row["num_tokens"]
            placed = tokens[row["start"] : end]
            assert placed[-1] == EOT and EOT not in placed[:-1]
            assert row["tokens_hash"] == tokens_hash(placed)
            seen.append((row["doc_id"], "".join(map(chr, placed[:-1]))))
        assert end == len(tokens) == facts[0]
        assert facts[1] == 1 or end <= shard_tokens
    assert [key for key, _ in seen] == sorted((key for key, _ in seen), key=lambda key: shuffle_key(0, key))
    assert dict(seen) == {doc_id(i): text for i, text in enumerate(texts)}


@given(lengths=st.lists(st.integers(1, 50), max_size=40), shard_tokens=st.integers(1, 60))
def test_a_shard_is_full_and_a_longer_document_is_a_shard_of_its_own(
    lengths: list[int], shard_tokens: int
) -> None:
    boundaries = cut(np.array(lengths, dtype=np.int64), shard_tokens).tolist()
    assert boundaries[0] == 0 and boundaries[-1] == len(lengths)
    for shard, (first, last) in enumerate(itertools.pairwise(boundaries)):
        inside = lengths[first:last]
        assert inside
        assert sum(inside) <= shard_tokens or len(inside) == 1
        if shard + 2 < len(boundaries):
            assert sum(inside) + lengths[last] > shard_tokens


def test_a_group_without_documents_has_no_shards() -> None:
    assert make_shards([], 10) == []
    assert make_shards(make_runs([], [0]), 10) == []
    assert make_shards(make_runs(["abc"], [3]), 10)[0][3][:2] == (4, 1)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), texts=corpora)
def test_where_a_document_is_said_to_land_is_where_it_lies(data: st.DataObject, texts: list[str]) -> None:
    owner = data.draw(st.lists(st.integers(0, 3), min_size=len(texts), max_size=len(texts)))
    runs = make_runs(texts, owner)
    tables = [rows for rows, _ in runs]
    said = {}
    for rows, places in zip(tables, place_group(tables, cut_group(tables, 20)), strict=True):
        for row, place in zip(rows.to_pylist(), places.to_pylist(), strict=True):
            said[row["doc_id"]] = (place["shard"], place["start"])
    found = {
        row["doc_id"]: (shard, row["start"])
        for shard, (_, _, index_file, _) in enumerate(make_shards(runs, 20))
        for row in pq.read_table(io.BytesIO(index_file)).to_pylist()
    }
    assert said == found


def test_another_seed_is_another_order() -> None:
    ids = [doc_id(i) for i in range(100)]
    assert sorted(ids, key=lambda i: shuffle_key(0, i)) != sorted(ids, key=lambda i: shuffle_key(1, i))
    assert shuffle_key(0, ids[0]) == shuffle_key(0, ids[0])
    assert len({shuffle_key(0, i) for i in ids}) == 100


def test_neighbours_in_a_shard_are_unrelated() -> None:
    keys = [int.from_bytes(shuffle_key(0, number.to_bytes(16, "big")), "big") for number in range(2000)]
    ranks = np.argsort(np.argsort(np.array([key >> 64 for key in keys], dtype=np.uint64)))
    assert abs(np.corrcoef(ranks[:-1], ranks[1:])[0, 1]) < 0.1


@settings(max_examples=50, deadline=None)
@given(
    data=st.binary(max_size=300),
    first=st.integers(0, 50),
    read_ahead=st.integers(1, 64),
    sizes=st.lists(st.integers(0, 40)),
)
def test_a_range_reader_gives_what_a_file_gives(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, first: int, read_ahead: int, sizes: list[int]
) -> None:
    folder = Folder(str(tmp_path_factory.mktemp("range")))
    folder.publish("runs/tokens", data)
    stretch = data[first : first + 200]
    reader, plain = RangeReader(folder, "runs/tokens", first, len(stretch), read_ahead), io.BytesIO(stretch)
    for size in sizes:
        assert reader.read(size) == plain.read(size)


def test_tokens_that_end_early_are_an_error_not_a_short_shard() -> None:
    rows, tokens = make_runs(["abc", "de"], [0, 0])[0]
    outputs = ShardOutputs(tokens=io.BytesIO(), blocks=io.BytesIO(), index=io.BytesIO())
    with pytest.raises(EOFError, match="4 bytes early"):
        write_shard([RunSlice(rows=rows, tokens=io.BytesIO(tokens[:-4]))], outputs)


def test_a_published_shard_has_a_digest_for_each_block_of_8_mib(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    rows, tokens = make_runs(["a" * 2_500_000, "b" * 10], [0, 0])[0]
    shard = publish_shard(out, "web", 7, [RunSlice(rows=rows, tokens=io.BytesIO(tokens))])
    assert (shard.file, shard.num_tokens, shard.num_documents) == ("shards/web/00007.bin", 2_500_012, 2)
    data, blocks = out.read(shard.file), out.read(shard.blocks_file)
    assert shard.hash == content_hash(data).hex() and shard.blocks_hash == content_hash(blocks).hex()
    assert shard.index_hash == content_hash(out.read(shard.index_file)).hex()
    assert blocks == block_digest(data[:BLOCK_BYTES]) + block_digest(data[BLOCK_BYTES:])
    assert publish_shard(out, "web", 7, [RunSlice(rows=rows, tokens=io.BytesIO(tokens))]) == shard
