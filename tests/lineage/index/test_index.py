"""The index and the checksums: sealed, in order, and silent about time and place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineage.ids import content_hash
from lineage.index.blocks import BLOCK_BYTES, ShardHasher, block_digest
from lineage.index.checksums import DamagedFileError, hash_file, seal, unseal
from lineage.index.output_index import (
    Index,
    NotFinishedError,
    PartFile,
    Shard,
    TokenizerIdentity,
    decode_index,
    encode_index,
    generation_of,
    make_index,
    part_name,
    publish_index,
    read_index,
    shard_names,
)
from lineage.storage.folder import Folder, StorageError

TOKENIZER = TokenizerIdentity(name="toy", hash="ab" * 16, vocab_size=10, eot_id=9)


def shard(source: str, number: int, num_tokens: int = 100, content: str = "00") -> Shard:
    file, blocks, index = shard_names(source, number)
    return Shard(
        source=source,
        shard=number,
        file=file,
        num_tokens=num_tokens,
        num_documents=3,
        hash=content * 16,
        blocks_file=blocks,
        blocks_hash="11" * 16,
        index_file=index,
        index_hash="22" * 16,
    )


def index(*shards: Shard) -> Index:
    part = PartFile(source="a", part=0, file=part_name("documents", "a", 0), num_rows=3, hash="33" * 16)
    return make_index(TOKENIZER, shards, [part], [])


def test_an_index_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = index(shard("b", 0), shard("a", 1), shard("a", 0))
    publish_index(Folder(str(tmp_path)), written)
    assert read_index(str(tmp_path)) == written
    assert [(s.source, s.shard) for s in written.shards] == [("a", 0), ("a", 1), ("b", 0)]
    assert str(tmp_path).encode() not in (tmp_path / "index.json").read_bytes()


def test_the_order_in_which_shards_are_given_does_not_matter() -> None:
    shards = [shard("a", 0), shard("a", 1), shard("b", 0)]
    assert encode_index(index(*shards)) == encode_index(index(*shards[::-1]))


def test_every_flipped_byte_of_an_index_is_found() -> None:
    data = encode_index(index(shard("a", 0)))
    for at in range(len(data)):
        for bit in (1, 128):
            damaged = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            with pytest.raises(DamagedFileError, match=r"OUT/index\.json is damaged"):
                decode_index(damaged, "OUT/index.json")


@pytest.mark.parametrize("cut", [0, 1, 20, 200])
def test_a_cut_index_is_damaged(cut: int) -> None:
    data = encode_index(index(shard("a", 0)))
    with pytest.raises(DamagedFileError):
        decode_index(data[: len(data) // 2 - cut], "index.json")


def test_a_folder_without_index_is_not_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(NotFinishedError, match="sluice run"):
        read_index(str(tmp_path))


def test_an_index_of_another_format_is_refused() -> None:
    data = seal({"format": 99, "version": 1})
    with pytest.raises(StorageError, match="format 99"):
        decode_index(data, "index.json")


def test_order_covers_lengths_and_content_covers_bytes() -> None:
    before = index(shard("a", 0), shard("a", 1))
    rewritten = index(shard("a", 0, content="ff"), shard("a", 1))
    longer = index(shard("a", 0, num_tokens=101), shard("a", 1))
    renamed = index(shard("b", 0), shard("b", 1))
    assert rewritten.order_fingerprint == before.order_fingerprint
    assert rewritten.content_fingerprint != before.content_fingerprint
    assert longer.order_fingerprint != before.order_fingerprint
    assert renamed.order_fingerprint != before.order_fingerprint
    other = replace(before, tokenizer=replace(TOKENIZER, hash="cd" * 16))
    assert other.content_fingerprint != before.content_fingerprint


def test_two_entries_for_one_shard_are_refused() -> None:
    with pytest.raises(ValueError, match="each once"):
        index(shard("a", 0), shard("a", 0))


@pytest.mark.parametrize("generation", [0, 1, 12])
def test_a_generation_is_told_by_the_name(generation: int) -> None:
    tokens, blocks, rows = shard_names("r3.web", 123456, generation)
    assert generation_of(tokens) == generation_of(blocks) == generation
    assert generation_of(rows) == 0
    assert generation_of(part_name("documents", "r3.web", 1, generation)) == generation


json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)


@given(fields=st.dictionaries(st.text(), json_values | st.dictionaries(st.text(), st.text()), min_size=1))
def test_what_is_sealed_comes_out_again(fields: dict[str, object]) -> None:
    assert unseal(seal(fields), "x") == fields


def test_the_checksum_is_of_every_byte_before_its_comma() -> None:
    data = seal({"a": 1})
    body, _, tail = data.rpartition(b",\n")
    assert tail == b' "checksum": "' + content_hash(body).hex().encode() + b'"\n}\n'


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 3 * BLOCK_BYTES // 2), max_size=4))
def test_a_shard_hashed_in_pieces_is_hashed_as_a_whole(sizes: list[int]) -> None:
    data = b"".join(bytes([number + 1]) * size for number, size in enumerate(sizes))
    hasher = ShardHasher()
    at = 0
    for size in sizes:
        hasher.update(data[at : at + size])
        at += size
    digests = hasher.digests()
    blocks = [block_digest(data[i : i + BLOCK_BYTES]) for i in range(0, len(data), BLOCK_BYTES)]
    assert digests.blocks == b"".join(blocks)
    assert digests.hash == content_hash(data).hex()


def test_a_file_is_hashed_without_being_held(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 20_000_000)
    assert hash_file(Folder(str(tmp_path)), "f") == content_hash(b"x" * 20_000_000).hex()
