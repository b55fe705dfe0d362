"""The shuffle: a bucket's rows come back whole and in order, from memory, from spilled files and from many
shares."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineage.storage.folder import Folder
from lineage.store import shuffle
from lineage.store.shuffle import Shuffle, gather, publish_index
from tests.support.outputs.runs import s3_server

NUM_BUCKETS = 5
NONE = pa.schema([("value", pa.string())])

ADDED = st.lists(
    st.tuples(st.integers(0, NUM_BUCKETS - 1), st.lists(st.text("abc", max_size=3), max_size=4)), max_size=12
)
"""What is added, one after another: a bucket and the values of some rows."""


def rows_of(values: list[str]) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.string())})


def expected(added: list[tuple[int, list[str]]], bucket: int) -> list[str]:
    return [value for owner, values in added for value in values if owner == bucket]


def publish_shares(folder: Folder, shares: list[list[tuple[int, list[str]]]]) -> list[str]:
    """The keys of the shares that have rows."""
    keys = []
    for number, added in enumerate(shares):
        with Shuffle(NUM_BUCKETS) as shuffle:
            for bucket, values in added:
                shuffle.add("met", rows_of(values), bucket)
            if shuffle.publish(folder, f"{number:02d}"):
                keys.append(f"{number:02d}")
    return keys


def gathered(folder: Folder, keys: list[str]) -> list[list[str]]:
    return [gather(folder, "met", keys, bucket, NONE)["value"].to_pylist() for bucket in range(NUM_BUCKETS)]


@given(ADDED, st.sampled_from([0, 8, 1 << 20]))
def test_a_bucket_has_its_rows_in_the_order_in_which_they_were_added_spilled_or_not(
    added: list[tuple[int, list[str]]], buffer_bytes: int
) -> None:
    with Shuffle(NUM_BUCKETS, buffer_bytes=buffer_bytes) as shuffle:
        for bucket, values in added:
            shuffle.add("met", rows_of(values), bucket)
        for bucket in range(NUM_BUCKETS):
            assert shuffle.read("met", bucket, NONE)["value"].to_pylist() == expected(added, bucket)


@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.text("abc", max_size=9))),
    st.sampled_from([1, 20, 1 << 20]),
)
def test_rows_sorted_slice_by_slice_come_to_the_same_buckets_in_the_same_order(
    added: list[tuple[int, str]], sorted_bytes: int
) -> None:
    keys, values = pa.array([key for key, _ in added], pa.int64()), [value for _, value in added]
    with pytest.MonkeyPatch.context() as patch, Shuffle(4) as shuffled:
        patch.setattr(shuffle, "_SORTED_BYTES", sorted_bytes)
        shuffled.add("urls", pa.table({"k": keys, "value": pa.array(values, pa.string())}))
        for bucket in range(4):
            found = shuffled.read("urls", bucket, NONE)["value"].to_pylist()
            assert found == [value for key, value in added if key >> 61 == bucket]


def test_spilling_makes_one_file_however_many_buckets_have_rows(tmp_path: Path) -> None:
    with Shuffle(1000, scratch=str(tmp_path), buffer_bytes=999 * 508) as shuffle:
        for bucket in range(1000):
            shuffle.add("met", pa.table({"value": pa.array([bucket], pa.int64())}), bucket)
        assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
        assert [rows["value"].to_pylist() for _, _, rows in shuffle.filled()] == [
            [number] for number in range(1000)
        ]


@given(st.lists(ADDED, max_size=4))
def test_a_bucket_is_gathered_from_all_shares_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, shares: list[list[tuple[int, list[str]]]]
) -> None:
    folder = Folder(str(tmp_path_factory.mktemp("shares")))
    keys = publish_shares(folder, shares)
    publish_index(folder, "met", keys, NUM_BUCKETS)
    whole = [entry for share in shares for entry in share]
    assert gathered(folder, keys) == [expected(whole, bucket) for bucket in range(NUM_BUCKETS)]


SHARES = [[(number % 3, [f"{share}-{number}"]) for number in range(share)] for share in range(30)]


@pytest.mark.parametrize("at_once", [1, 50, 1 << 20])
def test_an_index_made_piece_by_piece_names_the_same_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("lineage.store.shuffle._INDEXED_AT_ONCE", at_once)
    folder = Folder(str(tmp_path))
    keys = publish_shares(folder, SHARES)
    publish_index(folder, "met", keys, NUM_BUCKETS)
    whole = [entry for share in SHARES for entry in share]
    assert gathered(folder, keys) == [expected(whole, bucket) for bucket in range(NUM_BUCKETS)]


def test_an_object_store_gives_the_same_rows_in_the_same_order(tmp_path: Path) -> None:
    local = Folder(str(tmp_path))
    keys = publish_shares(local, SHARES)
    publish_index(local, "met", keys, NUM_BUCKETS)
    with s3_server("shuffle"):
        remote = Folder("s3://shuffle/met")
        assert publish_shares(remote, SHARES) == keys
        publish_index(remote, "met", keys, NUM_BUCKETS)
        assert gathered(remote, keys) == gathered(local, keys)


def test_a_share_without_rows_of_a_bucket_is_not_asked_for_them(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    keys = publish_shares(folder, [[(0, ["a"])], [(1, ["b"])], [(0, ["c"])]])
    publish_index(folder, "met", keys, NUM_BUCKETS)
    folder.remove("met-01.rows")
    assert gather(folder, "met", keys, 0, NONE)["value"].to_pylist() == ["a", "c"]
    with pytest.raises(FileNotFoundError):
        gather(folder, "met", keys, 1, NONE)
