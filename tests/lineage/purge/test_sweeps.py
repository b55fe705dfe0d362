"""A purge cleans the caches of its own host, says that it did, and names those of others."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lineage.index.checksums import read_checksums
from lineage.index.output_index import read_index
from lineage.purge.execution import apply
from lineage.purge.sweeps import unswept
from lineage.storage.folder import Folder
from lineage.store import tables
from lineage.store.checksum_update import update_table_checksums
from lineage.store.delta import append, read_table
from pipeline.inspect.hooks import drop_cached
from tests.support.outputs.purging import assert_whole, by_doc
from tests.support.outputs.small_out.hooks import apply_hooks, ordered, plan_hooks
from tests.support.outputs.small_out.output import SmallOut


def purge(template: SmallOut, out: Folder) -> None:
    hooks = replace(apply_hooks(), drop_cached=drop_cached)
    apply(out, ordered(by_doc(template.named["original"])), plan_hooks(), hooks)


def record_sweeps(out: Folder, *caches: tuple[str, Path]) -> None:
    """As training does at its start."""
    for host, folder in caches:
        row = {
            "run": "r",
            "host": host,
            "folder": str(folder),
            "content_fingerprint": read_index(out).content_fingerprint,
            "at": "2026-01-01T00:00:00Z",
        }
        rows = pa.Table.from_pylist([row], schema=tables.SCHEMAS["cache_sweeps"])
        append(out, "cache_sweeps", rows, f"r:cache_sweeps:{host}:{folder}")
    update_table_checksums(out, ["cache_sweeps"])


def fill(cache: Path, out: Folder) -> None:
    cache.mkdir()
    for shard in read_index(out).shards:
        (cache / f"{shard.hash}-00000-4.block").write_bytes(b"1234")


def blocks(cache: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in cache.glob("*.block")}


def left(out: Folder) -> list[tuple[str, str]]:
    return [(cache.host, cache.folder) for cache in unswept(out, read_index(out))]


def test_a_cache_that_the_purge_cleaned_is_not_among_those_that_still_hold_it(
    template: SmallOut, out: Folder, tmp_path: Path
) -> None:
    own, gone, here = tmp_path / "cache", tmp_path / "not-mounted", socket.gethostname()
    record_sweeps(out, (here, own), (here, gone), ("elsewhere", own))
    fill(own, out)
    assert left(out) == []
    purge(template, out)
    assert blocks(own) < {shard.hash for shard in read_index(out).shards}
    assert left(out) == [("elsewhere", str(own)), (here, str(gone))]
    newest = max(read_table(out, "cache_sweeps").to_pylist(), key=lambda row: row["at"])
    assert (newest["run"], newest["host"], newest["folder"]) == ("r", here, str(own))
    assert newest["content_fingerprint"] == read_index(out).content_fingerprint
    assert_whole(out)


def test_a_cache_whose_disk_refuses_ends_no_purge_and_is_named(
    template: SmallOut, out: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, here = tmp_path / "cache", socket.gethostname()
    record_sweeps(out, (here, own))
    (own / "of-another-shard.block").mkdir(parents=True)  # which no unlink removes
    purge(template, out)
    assert left(out) == [(here, str(own))]
    assert f"{own} cannot be used as a cache" in caplog.text
    assert_whole(out)


@pytest.mark.parametrize("act", ["sweep_own_caches", "erase_old_versions", "update_checksums"])
def test_a_purge_that_ended_about_a_sweep_is_finished_with_one_row_and_true_checksums(
    act: str, template: SmallOut, out: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "cache"
    record_sweeps(out, (socket.gethostname(), own))
    fill(own, out)

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"lineage.purge.execution.{act}", dies)
        with pytest.raises(KeyboardInterrupt):
            purge(template, out)
    purge(template, out)
    assert left(out) == [] and read_table(out, "cache_sweeps").num_rows == 2
    assert {table.table: table.num_rows for table in read_checksums(out).tables}["cache_sweeps"] == 2
    assert_whole(out)


def test_of_two_cleanings_in_one_second_that_of_the_content_there_is_now_counts(
    out: Folder, tmp_path: Path
) -> None:
    record_sweeps(out, ("elsewhere", tmp_path))
    now = read_table(out, "cache_sweeps").to_pylist()[0]
    for number, fingerprint in enumerate(("before", now["content_fingerprint"], "between")):
        row = now | {"content_fingerprint": fingerprint, "at": "2026-01-02T00:00:00Z"}
        append(
            out,
            "cache_sweeps",
            pa.Table.from_pylist([row], tables.SCHEMAS["cache_sweeps"]),
            f"again {number}",
        )
    assert left(out) == []
