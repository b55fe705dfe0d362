"""The files of a table's Delta log on disk: bringing them to the disk, and those that a power cut left
without content.

deltalake writes a commit under another name and links it, and syncs neither: after a power cut the name may
stand with no content, or be gone. A commit that stands empty was never whole, and no call that made it had
returned."""

from __future__ import annotations

import json
import os
from collections.abc import Collection

from lineage.storage.folder import Folder


def log_folder(name: str) -> str:
    """Where the log of table `name` lies in an OUT."""
    return f"lineage/{name}/_delta_log"


def commit_name(name: str, version: int) -> str:
    """The file of a table's commit, within an OUT."""
    return f"{log_folder(name)}/{version:020d}.json"


def sync_log(out: Folder, name: str, first: int) -> None:
    """Bring the content of a table's log from version `first` on to the disk; `out.sync` then brings the
    names."""
    if out.is_remote:
        return
    for file in _files(out, name):
        if file == "_last_checkpoint" or _version(file) >= first:
            out.sync_content(f"{log_folder(name)}/{file}")


def _versions(out: Folder, name: str) -> list[int]:
    """The versions whose commit stands, cut or whole, in order."""
    return sorted(
        _version(file) for file in _files(out, name) if file.endswith(".json") and _version(file) >= 0
    )


def drop_cut_files(out: Folder, name: str, named: Collection[str] = ()) -> None:
    """Remove the last commits of a table that are not whole, with every checkpoint that is empty or behind them and,
    where there is such a one, the file that names the newest; but for the `named` files, which were whole once: those
    are damaged, and no writer's to drop."""
    if out.is_remote:
        return
    cut: list[int] = []
    for version in reversed(_versions(out, name)):
        if _is_whole(out.read(commit_name(name, version))):
            break
        cut.insert(0, version)
    behind = min(cut, default=1 << 62)
    files = []
    for file in _files(out, name):
        size = os.path.getsize(out.at(f"{log_folder(name)}/{file}"))
        if ".checkpoint." in file and (_version(file) >= behind or not size):
            files.append(f"{log_folder(name)}/{file}")
    newest = f"{log_folder(name)}/_last_checkpoint"
    if out.exists(newest) and (files or not out.size(newest)):
        files.append(newest)
    for file in (*(commit_name(name, version) for version in cut), *files):
        if file not in named:
            out.remove(file)


def is_staged(file: str) -> bool:
    """Whether a file is what deltalake stages for a commit: it links it under the commit's name, and removes
    it. One that stands is of a writer that died or failed, and no part of the log."""
    return ".json#" in file


def drop_staged(out: Folder, name: str) -> None:
    """Remove what deltalake staged for commits whose writers died or failed. The caller holds the OUT."""
    if not out.is_remote:
        for file in filter(is_staged, _files(out, name)):
            out.remove(f"{log_folder(name)}/{file}")


def _files(out: Folder, name: str) -> list[str]:
    try:
        return sorted(os.listdir(out.at(log_folder(name))))
    except (FileNotFoundError, NotADirectoryError):  # who writes the log says what stands in its place
        return []


def _version(file: str) -> int:
    number = file[:20]
    return int(number) if len(number) == 20 and number.isdigit() else -1


def _is_whole(data: bytes) -> bool:
    """Whether a commit ends as one does: with a whole line of JSON."""
    try:
        json.loads(data.splitlines()[-1])
    except (IndexError, ValueError):
        return False
    return True
