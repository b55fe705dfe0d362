"""Reading keys and texts for deduplication: each document gets its own text, from several parts and purged
ones too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lineage.storage.folder import Folder
from lineage.store.tables import DEDUP, KEYS
from pipeline.dedup.inputs import (
    DedupUnit,
    EarlierFile,
    KeysFile,
    earlier_file,
    is_earlier,
    locators,
    open_slice,
    publish_slices,
    read_keys,
    read_texts,
    unit_file,
)
from pipeline.recipe.checks import MAX_FILES, MAX_SOURCES
from tests.support.inputs.dedup_corpus import Doc, one_file


def earlier_output(root: Path, places: list[tuple[int, int]], texts: dict[int, list[str | None]]) -> KeysFile:
    """An output whose one DEDUP file has rows at `places` (part, part_row), and whose parts hold `texts`."""
    rows = [{"doc_id": bytes(16), "source": "web", "part": part, "part_row": row} for part, row in places]
    pq.write_table(pa.Table.from_pylist(rows, schema=DEDUP), root / "dedup.parquet")
    for part, column in texts.items():
        pq.write_table(
            pa.table({"text": pa.array(column, pa.string())}), root / f"{part}.r1.parquet", row_group_size=2
        )
    names = tuple((part, f"{part}.r1.parquet") for part in texts)
    return earlier_file(EarlierFile(out=str(root), dedup="dedup.parquet", parts=names), 5)


def test_texts_of_an_earlier_file_are_found_in_their_parts(tmp_path: Path) -> None:
    places = [(2, 4), (7, 0), (2, 1), (2, 0), (7, 2)]
    texts: dict[int, list[str | None]] = {2: ["2-0", "2-1", "2-2", None, "2-4"], 7: ["7-0", "7-1", None]}
    file = earlier_output(tmp_path, places, texts)
    nodes = read_keys(file, ["doc_id"])["node"].to_numpy()
    assert is_earlier(nodes).all()
    assert list(read_texts(file, nodes)) == ["2-4", "7-0", "2-1", "2-0", None]
    assert list(read_texts(file, nodes[[1, 3]])) == ["7-0", "2-0"]


def test_nodes_say_where_their_documents_lie(tmp_path: Path) -> None:
    job = one_file([Doc(text=f"text {number}") for number in range(9)]).job(tmp_path)
    file = unit_file(job.units[0], job.work, job.out)
    nodes = read_keys(file, [])["node"].to_numpy()
    assert [column.tolist() for column in locators(nodes)] == [[0] * 9, [0] * 9, list(range(9))]
    assert not is_earlier(nodes).any()
    assert list(read_texts(file, nodes[[0, 7, 8]])) == ["text 0", "text 7", "text 8"]


def test_the_last_file_of_the_last_source_has_numbers_of_its_own() -> None:
    last = DedupUnit(source_index=MAX_SOURCES - 1, file_index=MAX_FILES - 1, keys="k", part="p")
    file = unit_file(last, Folder("work"), Folder("out"))
    assert (
        not file.earlier
        and earlier_file(EarlierFile(out="o", dedup="d", parts=()), 0).ordinal == file.ordinal + 1
    )


def test_keys_and_texts_of_two_runs_are_refused(tmp_path: Path) -> None:
    job = one_file([Doc(text="only text")]).job(tmp_path)
    file = unit_file(job.units[0], job.work, job.out)
    with pytest.raises(ValueError, match="has 1 rows, but its keys name row 3"):
        list(read_texts(file, np.array([0, 3])))


def test_keys_out_of_order_are_refused(tmp_path: Path) -> None:
    job = one_file([Doc(text="a"), Doc(text="b")]).job(tmp_path)
    name = job.work.at(job.units[0].keys)
    pq.write_table(pq.read_table(name, schema=KEYS).take([1, 0]), name)
    with pytest.raises(ValueError, match="part_row must increase"):
        read_keys(unit_file(job.units[0], job.work, job.out), [])


@pytest.mark.parametrize("num_slices", [1, 2, 5])
def test_slices_are_neighbouring_files_that_together_are_all(tmp_path: Path, num_slices: int) -> None:
    files = [earlier_file(EarlierFile(out="o", dedup=str(n), parts=((n, "p"),)), n) for n in range(5)]
    folder = Folder(str(tmp_path))
    starts = publish_slices(folder, files, num_slices)
    slices = [open_slice(folder, number) for number in range(num_slices)]
    assert [file for files_of in slices for file in files_of] == files
    assert starts == tuple(files_of[0].ordinal for files_of in slices)
