"""A command that a purge overtakes says so: the files that it took from the index are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from lineage.index.output_index import INDEX_FILE, part_name, purged_meanwhile, read_index
from lineage.storage.folder import Folder
from pipeline.cli.main import main
from tests.support.outputs.purging import by_doc, purge
from tests.support.outputs.small_out.output import SmallOut, make_small_out


@pytest.fixture
def small(tmp_path: Path) -> SmallOut:
    return make_small_out(str(tmp_path / "out"))


def test_a_command_that_a_purge_overtakes_says_so_and_a_new_call_reads_what_is_left(
    small: SmallOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_index(small.folder)
    purge(small.folder, by_doc(small.named["original"]))
    monkeypatch.setattr("pipeline.cli.output.tokenizer.read_index", lambda out: before)
    call = ["tokenizer", "train", small.folder.url, "--vocab", "300", "--to", str(tmp_path / "to.tiktoken")]
    assert main(call) == 1
    told = capsys.readouterr().err
    assert f"{small.folder.url} was purged from while it was read: documents/" in told
    assert "the output is at version 2 now, which a new call reads" in told and "Errno" not in told
    monkeypatch.undo()
    assert main(call) == 0


def test_a_file_that_is_lost_is_not_said_to_be_purged(small: SmallOut, tmp_path: Path) -> None:
    named = sorted(read_index(small.folder).files())
    assert not any(purged_meanwhile(small.folder.at(name)) for name in named), "nothing was purged yet"
    purge(small.folder, by_doc(small.named["original"]))
    now = read_index(small.folder).files()
    assert [name for name in named if purged_meanwhile(small.folder.at(name))] == [
        name for name in named if name not in now
    ]
    for lost in (*now, INDEX_FILE, "lineage/documents/00000-0.parquet"):
        assert purged_meanwhile(small.folder.at(lost)) is None
    assert purged_meanwhile(Folder(str(tmp_path / "elsewhere")).at(part_name("documents", "web", 0))) is None
