"""The input files of a source: listed as a set in the order of their names, and opened as streams.

A file's name in the tables is relative, so that disk and S3 agree: to the folders before the first wildcard
of its glob, to its own folder if it was named outright, or to the base URL of its paths list.

A web address may hold credentials, as `${SLUICE_SECRET_…}` or outright: `Input.address` has them, and nothing
else."""

from __future__ import annotations

import functools
import gzip
import logging
import math
import os
import posixpath
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Final, Protocol, cast
from urllib.parse import urlsplit

from lineage.recipe import RecipeError, errors_about, utf8_text
from lineage.secrets import without_secrets
from lineage.storage.folder import filesystem, is_remote, join, kind_of, local_path, with_environment
from pipeline.inputs.retries import READING, Retries
from pipeline.inputs.revisions import Revisions
from pipeline.inputs.selected import SelectedRecords

COMMON_CRAWL: Final = "https://data.commoncrawl.org"
_COMMON_CRAWL_TOP = ("crawl-data", "cc-index", "contrib", "projects")
_LIST_ENDINGS = (".paths.gz", ".paths")
_WILDCARDS = "*?["
_MAX_LIST_BYTES: Final = 1 << 30
CONNECTIONS: Final = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input file: `index` is its place among its source's names, `name` relative, `size` in bytes. `url`
    says where it lies, as it may be recorded; `secret_url` is what must be asked for, where that holds
    credentials. With `records` nothing else of the file is read, and `size` is theirs."""

    source: str
    index: int
    name: str
    url: str
    size: int
    secret_url: str | None = field(default=None, repr=False)
    records: SelectedRecords | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """The URL to open: never to be recorded or shown."""
        return self.secret_url or self.url


class InputSource(Protocol):
    """What is asked of a recipe's [[source]]."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def limit(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFiles:
    """Files that are named as inputs are, but not by source.inputs: `key` is what messages call what names them.
    They stand in no table, so that two may have one relative name."""

    key: str
    inputs: tuple[str, ...]
    name: str = ""
    limit: int | None = None


def _key_of(source: InputSource) -> str:
    return source.key if isinstance(source, NamedFiles) else f"source.inputs of {source.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedFile:
    """A file that an entry of `inputs` names; `size` None: not known yet. `url` may hold credentials, `shown`
    does not. `by_link`: it lies below a link to a folder."""

    name: str
    url: str = field(repr=False)
    shown: str
    size: int | None
    by_link: bool = False


def list_inputs(source: InputSource, revisions: Revisions | None = None) -> list[Input]:
    """The input files of `source`, sorted by name, the first `limit` of them; those of the Hugging Face Hub at
    the commits of `revisions`, to which are added what other revisions name now.

    A file that is listed twice counts once, with a warning. RecipeError: a file is missing, a glob matches
    nothing, or two files have the same relative name."""
    every = _list_all(source, Revisions() if revisions is None else revisions)
    listed: Sequence[_ListedFile] = _one_for_each_place(source.name, every)
    if not isinstance(source, NamedFiles):
        listed = _one_for_each_name(_key_of(source), listed)
    listed = sorted(listed, key=lambda found: (found.name, found.url))[: source.limit]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        sizes = pool.map(lambda found: _size(_key_of(source), found), listed)
        return [
            Input(
                source=source.name,
                index=index,
                name=found.name,
                url=found.shown,
                size=size,
                secret_url=None if found.url == found.shown else found.url,
            )
            for index, (found, size) in enumerate(zip(listed, sizes, strict=True))
        ]


def open_input(found: Input, retries: Retries = READING) -> BinaryIO:
    """The file as a seekable stream; on a web server one that goes on after dropped connections, and holds as
    many bytes as were listed. OSError if it cannot be read."""
    return open_place(found.address, found.url, retries, found.size)


def input_size(found: Input) -> int:
    """The bytes of an input as it is now; FileNotFoundError if it is gone."""
    if _is_http(found.url):
        return cast(int, _http().http_size(found.address, shown=found.url))
    if is_remote(found.url):
        return int(filesystem(found.url).size(found.address))
    return os.path.getsize(local_path(found.url))


def input_version(found: Input) -> str:
    """The ETag of a remote input, or the time of its last change if it has none; "" if it has neither.
    OSError if it cannot be asked for."""
    if _is_http(found.url):
        tag = cast(str, _http().http_facts(found.address, shown=found.url).version)
    else:
        info = filesystem(found.url).info(found.address)
        tags = (info.get(name) for name in ("ETag", "etag", "blob_id", "xet_hash", "mtime"))
        tag = str(next((tag for tag in tags if tag), ""))
    return tag.strip('"')


def open_place(url: str, shown: str, retries: Retries | None = None, size: int | None = None) -> BinaryIO:
    """A path or URL, listed or not, as a seekable stream; messages call it `shown`. `size` as of `open_http`:
    files and object stores state theirs."""
    if not is_remote(url):
        return open(local_path(url), "rb")
    if _is_http(url):
        return cast(BinaryIO, _http().open_http(url, retries, shown, size))
    if url.startswith("hf://"):
        # One answer for the whole file, which goes on after a dropped connection: the file system of the Hub's
        # client asks for each 5 MB, and fails where an answer breaks off.
        address, headers = filesystem(url).address(url)
        return cast(BinaryIO, _http().open_http(address, retries, shown, size, headers))
    return cast(BinaryIO, filesystem(url).open(url, "rb", cache_type="readahead"))


def _http() -> ModuleType:
    """The reader of web servers' files: its client takes a tenth of a second to import, and few runs need
    it."""
    from pipeline.inputs import http_file

    return http_file


def _is_http(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https")


def may_be_called(file: str, name: str) -> bool:
    """Whether `name` can be what the column warc_file calls an input, or the end of its path: a query may follow."""
    path = urlsplit(file).path if is_remote(file) else file
    return file == name or file.endswith("/" + name) or path.endswith("/" + name)


def _list_all(source: InputSource, revisions: Revisions) -> Iterator[_ListedFile]:
    for given in source.inputs:
        with errors_about(_key_of(source)):
            entry, shown = with_environment(given), without_secrets(given)
        try:
            if entry.startswith("hf://"):
                entry = shown = revisions.pinned(entry)
            if _without_query(shown).endswith(_LIST_ENDINGS):
                yield from _list_paths(entry, shown, revisions)
            else:
                yield from _list_entry(entry, shown)
        except FileNotFoundError as error:
            raise RecipeError(f"{_key_of(source)}: there is no file {shown!r}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise RecipeError(f"{_key_of(source)}: {shown!r} cannot be listed: {error}") from error


def _without_query(url: str) -> str:
    """A web address without what follows its path; any other place as it is."""
    return url.partition("#")[0].partition("?")[0] if url.startswith(("http://", "https://")) else url


def _list_entry(entry: str, shown: str) -> Iterator[_ListedFile]:
    url = entry if is_remote(entry) else local_path(entry)
    if _is_http(url):
        yield _ListedFile(
            name=posixpath.basename(urlsplit(url).path) or shown, url=url, shown=shown, size=None
        )
        return
    kind = kind_of(url)
    # A name that holds a wildcard but stands for a file is that file.
    if kind == "file":
        yield _ListedFile(
            name=posixpath.basename(url), url=url, shown=url, size=int(filesystem(url).size(url))
        )
        return
    if kind == "directory":
        raise OSError(f"it is a folder: name its files, for example {join(entry, '*.warc.gz')!r}")
    if not any(wildcard in url for wildcard in _WILDCARDS):
        raise FileNotFoundError(url)
    yield from _list_glob(url)


def _list_glob(url: str) -> Iterator[_ListedFile]:
    base = _fixed_part(url)
    scheme = f"{urlsplit(url).scheme}://" if is_remote(url) else ""
    asked_for = [part for part in url.removeprefix(base).split("/") if part.startswith(".")]
    num_found = 0
    for path, info, by_link in _matching(url):
        full = scheme + path.removeprefix(scheme)
        name = full.removeprefix(base + "/")
        if _is_hidden(name, asked_for):
            continue
        size = (
            _size_of_link(full)
            if info.get("islink")
            else int(info["size"])
            if info["type"] == "file"
            else None
        )
        if size is not None:
            num_found += 1
            yield _ListedFile(name=name, url=full, shown=full, size=size, by_link=by_link)
    if not num_found:
        where = "" if is_remote(url) else f" ({url})"
        raise OSError(
            f"the pattern matches no file{where}. Name yours as source.inputs, in the recipe or by --set"
            """ 'source.0.inputs=["/data/crawl/*.warc.gz"]'"""
        )


def _matching(pattern: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Path and facts of all that a pattern matches, and whether it lies below a link to a folder. OSError
    where a folder cannot be listed: it may hold inputs, and fsspec's own glob would leave it out without a
    word. It does so with every link to a folder too."""
    system = filesystem(pattern)
    plain = system._strip_protocol(pattern)
    from fsspec.utils import glob_translate  # a run from an earlier one's texts lists nothing

    matches = re.compile(glob_translate(plain)).match
    top = _fixed_part(plain)
    most_levels = math.inf if "**" in plain else plain[len(top) :].lstrip("/").count("/") + 1
    folders: list[tuple[str, int, tuple[str, ...]]] = [(top or ("" if is_remote(pattern) else "/"), 1, ())]
    while folders:
        folder, level, linked = folders.pop()
        try:
            entries = system.ls(folder, detail=True)
        except FileNotFoundError:
            continue
        for info in entries:
            path = info["name"].rstrip("/")
            if path == folder:  # an object store's mark of a folder
                continue
            if level < most_levels and info["type"] == "directory":
                folders.append((path, level + 1, linked))
            elif level < most_levels and info.get("islink") and os.path.isdir(path):
                folders.append((path, level + 1, (*linked, os.path.realpath(folder))))
                if most_levels == math.inf:
                    _check_ends(path, folders[-1][2])
            if matches(path):
                yield path, info, bool(linked)


def _check_ends(link: str, holders: Sequence[str]) -> None:
    """OSError if the link leads to a folder that holds it: `**` would go down there without end. `holders`
    are the real places of the folders that the links on the way, the last of them this one, lie in."""
    target = os.path.realpath(link)
    if any(os.path.commonpath([target, holder]) == target for holder in holders):
        raise OSError(f"{link} is a link to {target}, a folder that holds it: name the folders without it")


def _is_hidden(name: str, asked_for: Sequence[str]) -> bool:
    """Whether a part of the name has a leading dot that none of these parts of the pattern has. As in a
    shell, a wildcard does not match a leading dot: temporary files of writers are no inputs."""
    hidden = [part for part in name.split("/") if part.startswith(".")]
    return not all(any(fnmatchcase(part, pattern) for pattern in asked_for) for part in hidden)


def _size_of_link(path: str) -> int | None:
    """The bytes of the file that a link on disk leads to, None where it leads to anything else. The caches of
    Hugging Face, git-annex and DVC are links. OSError if it leads nowhere: what was not fetched must not be
    left out."""
    try:
        target = os.stat(path)
    except FileNotFoundError as error:
        raise OSError(f"{path} is a link to {os.readlink(path)}, which is not there") from error
    return target.st_size if stat.S_ISREG(target.st_mode) else None


def _fixed_part(pattern: str) -> str:
    """The folders before the first wildcard."""
    first = min(pattern.index(wildcard) for wildcard in _WILDCARDS if wildcard in pattern)
    return pattern[:first].rpartition("/")[0]


def _list_paths(entry: str, shown: str, revisions: Revisions) -> Iterator[_ListedFile]:
    paths = _read_paths(entry, shown)
    if not paths:
        raise OSError("the list is empty")
    base = _base_of_list(_without_query(entry), paths[0])
    for each in paths:
        path = revisions.pinned(each) if each.startswith("hf://") else each
        if is_remote(path):
            # Of a web address alone, ? and # end the path.
            name = urlsplit(path).path if _is_http(path) else path.partition("://")[2].partition("/")[2]
            yield _ListedFile(name=name.strip("/"), url=path, shown=without_secrets(path), size=None)
        elif path.startswith("/") or ".." in path.split("/"):
            named, root = without_secrets(path), without_secrets(base)
            raise OSError(f"the list names {named!r}: expected URLs, or paths relative to {root}")
        else:
            url = join(base, path)
            yield _ListedFile(name=path, url=url, shown=without_secrets(url), size=None)


def _read_paths(entry: str, shown: str) -> list[str]:
    with open_place(entry, shown) as stream:
        data = stream.read(_MAX_LIST_BYTES)
        if data.startswith(b"\x1f\x8b"):
            stream.seek(0)
            with gzip.open(stream) as inflated:
                data = inflated.read(_MAX_LIST_BYTES)
    lines = [line.strip() for line in utf8_text(data, f"the list {shown!r}").splitlines()]
    # `find` writes ./a for a. Under both names a file would be read twice.
    return [line if is_remote(line) else re.sub(r"(?<![^/])(?:\./+)+", "", line) for line in lines if line]


def _base_of_list(entry: str, first: str) -> str:
    """What the paths of a list are relative to: what stands in the list's own URL before their first part, as
    in https://data.commoncrawl.org/crawl-data/…/warc.paths.gz. A list that was copied elsewhere: its own
    folder, if its first file lies there, or else Common Crawl's server for paths that begin as there."""
    url = entry if is_remote(entry) else local_path(entry)
    top = first.partition("/")[0]
    before, found, _ = url.partition(f"/{top}/")
    if found:
        return before
    folder = url.rpartition("/")[0]
    if top in _COMMON_CRAWL_TOP and (is_remote(url) or not Path(folder, first).exists()):
        return COMMON_CRAWL
    return folder


def _one_for_each_place(source: str, listed: Iterable[_ListedFile]) -> list[_ListedFile]:
    """Each file once, by its name without links to folders where it has one. Two links to one file are two
    files: so a store keeps files of equal content, and in S3 they are two objects."""
    real_folder = functools.cache(os.path.realpath)
    by_place: dict[str, _ListedFile] = {}
    for found in listed:
        folder, _, name = found.url.rpartition("/")
        place = found.url if is_remote(found.url) else f"{real_folder(folder or '/')}/{name}"
        known = by_place.setdefault(place, found)
        if known is not found:
            _log.warning("source %s: %s is listed twice; it counts once", source, found.shown)
            by_place[place] = min(known, found, key=lambda either: (either.by_link, either.name))
    return list(by_place.values())


def _one_for_each_name(key: str, listed: Sequence[_ListedFile]) -> Sequence[_ListedFile]:
    by_name: dict[str, _ListedFile] = {}
    for found in sorted(listed, key=lambda each: (each.name, each.url)):  # whatever order folders list in
        known = by_name.setdefault(found.name, found)
        if known is not found:
            raise RecipeError(
                f"{key}: {known.shown} and {found.shown} would both be called"
                f" {found.name!r} in the tables: reach them by one glob whose wildcard stands where they"
                " differ, or make two sources"
            )
    return listed


def _size(key: str, found: _ListedFile) -> int:
    try:
        if found.size is not None:
            return found.size
        if _is_http(found.url):
            return cast(int, _http().http_size(found.url, shown=found.shown))
        info = filesystem(found.url).info(found.url)
        if info["type"] == "directory":
            raise IsADirectoryError("it is a folder: a list names files")
        return int(info["size"])
    except FileNotFoundError as error:
        raise RecipeError(f"{key}: there is no file {found.shown}") from error
    except OSError as error:
        raise RecipeError(f"{key}: {found.shown} cannot be read: {error}") from error
