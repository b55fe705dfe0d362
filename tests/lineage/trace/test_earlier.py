"""What other outputs and other hosts still hold."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lineage.purge.sweeps import unswept
from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.delta import append
from lineage.trace.earlier import NotOpenedError, find_in
from tests.support.outputs.small_out.output import make_small_out


def test_the_output_that_kept_a_document_is_found(tmp_path: Path) -> None:
    one, two = (make_small_out(str(tmp_path / str(seed)), seed=seed) for seed in (1, 2))
    find = find_in([one.folder.url, two.folder.url])
    assert find(one.named["original"].doc_id) == one.folder.url
    assert find(two.named["original"].doc_id) == two.folder.url
    assert find(two.named["exact"].doc_id) is None, "it was a duplicate there"
    assert find(b"0" * 16) is None


def test_an_output_that_is_not_there_is_named_where_no_other_kept_the_document(tmp_path: Path) -> None:
    small, gone = make_small_out(str(tmp_path / "out")), str(tmp_path / "gone")
    find = find_in([gone, small.folder.url])
    assert find(small.named["original"].doc_id) == small.folder.url
    for _ in range(2):
        with pytest.raises(NotOpenedError, match=f"{gone} cannot be opened") as raised:
            find(b"0" * 16)
        assert list(raised.value.reasons) == [gone]


def sweep(out: Folder, host: str, fingerprint: str, at: str) -> None:
    row = {"run": "r", "host": host, "folder": "/nvme", "content_fingerprint": fingerprint, "at": at}
    append(
        out,
        "cache_sweeps",
        pa.Table.from_pylist([row], schema=tables.SCHEMAS["cache_sweeps"]),
        f"{host} {at}",
    )


def test_caches_cleaned_for_other_content_are_listed(tmp_path: Path) -> None:
    small = make_small_out(str(tmp_path / "out"))
    now = small.index.content_fingerprint
    for host, fingerprint, at in (
        ("a", "old", "2026-01-01"),
        ("a", now, "2026-01-02"),
        ("b", now, "2026-01-01"),
        ("b", "old", "2026-01-02"),
        ("c", "old", "2026-01-01"),
    ):
        sweep(small.folder, host, fingerprint, at)
    assert [(cache.host, cache.at) for cache in unswept(small.folder, small.index)] == [
        ("b", "2026-01-02"),
        ("c", "2026-01-01"),
    ]
