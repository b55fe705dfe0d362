"""What a run keeps of its plan, and that nothing of it stays behind when it has ended."""

from __future__ import annotations

from pathlib import Path

from lineage.storage.folder import Folder
from pipeline.plan import PLAN, clear_work


def test_clearing_that_was_killed_at_its_last_act_is_ended_by_the_next_call(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    out.publish(PLAN, b"{}")
    (tmp_path / "work" / "units" / "a").mkdir(parents=True)
    (tmp_path / PLAN).unlink()  # where the kill struck: the plan was gone, the folders were not
    clear_work(out)
    assert list(tmp_path.iterdir()) == []


def test_clearing_leaves_what_an_unfinished_purge_wrote_down(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    out.publish("work/purge/intent.json", b"{}")
    clear_work(out)
    assert out.names() == ["work/purge/intent.json"]
