"""Where a path or URL leads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lineage.storage.folder import Folder
from lineage.storage.places import name_in, same_place, shown_place


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3://b/out", "s3://b/out/", True),
        ("s3://b/out", "s3://b/./out", True),
        ("s3://b/out", "s3://b//out", True),
        ("s3://b/out", "s3://b/x/../out", True),
        ("s3://b/out", "s3://b/out2", False),
        ("s3://b/out", "s3://c/out", False),
        ("s3://b/out", "gs://b/out", False),
        ("s3://b/out", "/b/out", False),
        ("/none/out", "/none//out/", True),
        ("/none/out", "/none/out2", False),
    ],
)
def test_two_spellings_of_a_place_are_one(one: str, other: str, same: bool) -> None:
    assert same_place(Folder(one), Folder(other)) is same


def test_a_link_leads_to_the_place(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    out, link = Folder(str(tmp_path / "out")), Folder(str(tmp_path / "link"))
    assert same_place(out, link) and same_place(out, Folder(os.path.relpath(out.url)))
    assert (shown_place(out), shown_place(link)) == (out.url, f"{link.url} (a link to {out.url})")


def test_a_name_within_a_folder_is_known_by_its_path() -> None:
    out = Folder("/data/run")
    assert name_in(out, "/data/run/checkpoints/") == "checkpoints"
    assert name_in(out, "/data/run/a/../b") == "b"
    assert name_in(out, "/data/run") is name_in(out, "/data/run2/x") is None
