"""Where a path or URL leads: whether two come to one place, and what lies within a folder.

A proof about a folder is worth nothing if it reads another one. So what an output records of a place within
itself is a name there, and a comparison first asks whether it has two folders before it."""

from __future__ import annotations

import os
import posixpath

from lineage.storage.folder import Folder


def same_place(one: Folder, other: Folder) -> bool:
    """Whether two folders are one, however they are spelt: also by links, and by two mounts of one disk."""
    if one.is_remote != other.is_remote:
        return False
    if one.is_remote:
        return _spelt(one.url) == _spelt(other.url)
    try:
        return os.path.samefile(one.url, other.url)
    except OSError:  # one is not there
        return os.path.realpath(one.url) == os.path.realpath(other.url)


def shared_files(one: Folder, other: Folder) -> list[str]:
    """The names of files of one folder that are links to files of the other, or the other way round."""
    if one.is_remote or other.is_remote:
        return []
    theirs = {os.path.realpath(other.at(name)) for name in other.names()}
    return [name for name in one.names() if os.path.realpath(one.at(name)) in theirs]


def name_in(folder: Folder, url: str) -> str | None:
    """The name of `url` within a folder; None where it lies elsewhere, or is the folder itself."""
    prefix, place = f"{folder.url}/", Folder(url).url
    return place.removeprefix(prefix) if place.startswith(prefix) else None


def shown_place(folder: Folder) -> str:
    """A folder as it was named and, where links lead elsewhere, where to."""
    real = folder.url if folder.is_remote else os.path.realpath(folder.url)
    return folder.url if real == folder.url else f"{folder.url} (a link to {real})"


def _spelt(url: str) -> str:
    scheme, _, path = url.partition("://")
    return f"{scheme}://{posixpath.normpath(path)}"
