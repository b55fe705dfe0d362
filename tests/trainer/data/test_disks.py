"""The disk of a path, from mounts as proc(5) writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.data.disks import disk_of

MOUNTS = r"""20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 8:2 / {data} rw - xfs /dev/nvme1n1 rw
22 20 0:40 / {data}/shared\040files rw master:1 - lustre 10.0.0.1@tcp:/scratch rw
23 20 8:3 / {data} rw - ext4 /dev/nvme2n1 rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    (tmp_path / "mountinfo").write_text(MOUNTS.replace("{data}", str(tmp_path / "data")))
    (tmp_path / "data" / "shared files").mkdir(parents=True)
    return str(tmp_path / "mountinfo")


def test_the_innermost_mount_counts_and_of_two_at_one_place_the_last(tmp_path: Path, mounts: str) -> None:
    data = tmp_path / "data"
    assert disk_of(str(data), mounts) == f"/dev/nvme2n1 (ext4, mounted at {data})"
    shared = data / "shared files"
    assert disk_of(str(shared / "x.bin"), mounts) == f"10.0.0.1@tcp:/scratch (lustre, mounted at {shared})"
    assert disk_of(str(tmp_path / "database"), mounts) == "/dev/sda1 (ext4, mounted at /)"


def test_where_mounts_are_not_known_the_device_has_a_number(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    assert disk_of(str(tmp_path), str(tmp_path / "none")) == f"device {device >> 8}:{device & 255}"


def test_this_systems_own_mounts_are_read(tmp_path: Path) -> None:
    assert "mounted at /" in disk_of(str(tmp_path / "not there"))
