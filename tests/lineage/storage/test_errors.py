"""Errors of a disk: the path that they name, and what they say is to be done."""

from __future__ import annotations

import errno
import os

import pytest

from lineage.storage.errors import StorageError, naming_path, what_to_do


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errno.ENOSPC, "Free some room and make the same call again"),
        (errno.EDQUOT, "Free some room and make the same call again"),
        (errno.EIO, "When the disk works again, make the same call again"),
        (errno.EROFS, "When the disk works again, make the same call again"),
        (errno.EACCES, None),
    ],
)
def test_what_to_do_about_a_disk_is_said_by_its_reason(error: int, advice: str | None) -> None:
    said = what_to_do(str(StorageError(error, os.strerror(error), "/disk/file")))
    assert said is None if advice is None else said is not None and said.startswith(advice)


@pytest.mark.parametrize(
    ("filename", "named"),
    [(None, "/disk/file"), ("/disk/other", "/disk/other"), (b"/disk/bytes", "/disk/bytes")],
)
def test_an_error_of_the_disk_names_a_path_as_a_person_would(
    filename: str | bytes | None, named: str
) -> None:
    with pytest.raises(OSError, match=f"Input/output error: '{named}'"), naming_path("/disk/file"):
        raise OSError(errno.EIO, "Input/output error", *([filename] if filename else []))


def test_an_error_that_is_none_of_the_system_is_left_as_it_is() -> None:
    with pytest.raises(OSError, match=r"^it is not there$"), naming_path("/disk/file"):
        raise OSError("it is not there")
