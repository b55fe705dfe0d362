"""The input files of a source: listed as a set in the order of their names, and opened as streams.

A file's name in the tables is relative, so that disk and S3 agree: to the folders before the first wildcard of its
glob, to its own folder if it was named outright, or to the base URL of its paths list.
"""

from __future__ import annotations

import gzip
import logging
import posixpath
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast
from urllib.parse import urlsplit

from lineage.recipe import RecipeError
from lineage.storage.folder import filesystem, is_remote, join, local_path
from pipeline.inputs.http_file import Retries, http_size, open_http

COMMON_CRAWL: Final = "https://data.commoncrawl.org"
_COMMON_CRAWL_TOP = ("crawl-data", "cc-index", "contrib", "projects")
_LIST_ENDINGS = (".paths.gz", ".paths")
_WILDCARDS = "*?["
_MAX_LIST_BYTES: Final = 1 << 30
_CONNECTIONS: Final = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input file: `index` is its place among its source's names, `name` relative, `size` in bytes."""

    source: str
    index: int
    name: str
    url: str
    size: int


class Source(Protocol):
    """What is asked of a recipe's [[source]]."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def limit(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """A file that an entry of `inputs` names; `size` None: not known yet."""

    name: str
    url: str
    size: int | None


def list_inputs(source: Source) -> list[Input]:
    """The input files of `source`, sorted by name, the first `limit` of them.

    A file that is listed twice counts once, with a warning. RecipeError: a file is missing, a glob matches nothing, or
    two files have the same relative name."""
    listed = _one_for_each_name(source.name, _one_for_each_url(source.name, _list_all(source)))
    listed = sorted(listed, key=lambda found: found.name)[: source.limit]
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        sizes = pool.map(lambda found: _size(source.name, found), listed)
        return [
            Input(source=source.name, index=index, name=found.name, url=found.url, size=size)
            for index, (found, size) in enumerate(zip(listed, sizes, strict=True))
        ]


def open_input(found: Input, retries: Retries | None = None) -> BinaryIO:
    """The file as a seekable stream; on a web server one that goes on after dropped connections. OSError if it
    cannot be read."""
    return _open(found.url, retries)


def _open(url: str, retries: Retries | None = None) -> BinaryIO:
    if not is_remote(url):
        return open(local_path(url), "rb")
    if _is_http(url):
        return cast(BinaryIO, open_http(url, retries))
    return cast(BinaryIO, filesystem(url).open(url, "rb", cache_type="readahead"))


def _is_http(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https")


def _list_all(source: Source) -> Iterator[_Listed]:
    for entry in source.inputs:
        try:
            if entry.endswith(_LIST_ENDINGS):
                yield from _list_paths(entry)
            else:
                yield from _list_entry(entry)
        except FileNotFoundError as error:
            raise RecipeError(f"source.inputs of {source.name!r}: there is no file {entry!r}") from error
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise RecipeError(f"source.inputs of {source.name!r}: {entry!r} cannot be listed: {error}") from error


def _list_entry(entry: str) -> Iterator[_Listed]:
    url = entry if is_remote(entry) else local_path(entry)
    if _is_http(url):
        yield _Listed(name=posixpath.basename(urlsplit(url).path) or url, url=url, size=None)
        return
    files = filesystem(url)
    # A name that holds a wildcard but stands for a file is that file.
    if files.isfile(url):
        yield _Listed(name=posixpath.basename(url), url=url, size=int(files.size(url)))
        return
    if files.isdir(url):
        raise OSError(f"it is a folder: name its files, for example {join(entry, '*.warc.gz')!r}")
    if not any(wildcard in url for wildcard in _WILDCARDS):
        raise FileNotFoundError(url)
    yield from _list_glob(url)


def _list_glob(url: str) -> Iterator[_Listed]:
    base = _fixed_part(url)
    scheme = "s3://" if is_remote(url) else ""
    found = filesystem(url).glob(url, detail=True)
    num_found = 0
    for path, info in found.items():
        full = scheme + path.removeprefix(scheme)
        name = full.removeprefix(base + "/")
        # As in a shell, a wildcard does not match a leading dot: temporary files of writers are no inputs.
        hidden = any(part.startswith(".") for part in name.split("/")) and "/." not in url
        if info["type"] == "file" and not hidden:
            num_found += 1
            yield _Listed(name=name, url=full, size=int(info["size"]))
    if not num_found:
        raise OSError("the pattern matches no file")


def _fixed_part(pattern: str) -> str:
    """The folders before the first wildcard."""
    first = min(pattern.index(wildcard) for wildcard in _WILDCARDS if wildcard in pattern)
    return pattern[:first].rpartition("/")[0]


def _list_paths(entry: str) -> Iterator[_Listed]:
    paths = _read_paths(entry)
    if not paths:
        raise OSError("the list is empty")
    base = _base_of_list(entry, paths[0])
    for path in paths:
        if is_remote(path):
            yield _Listed(name=urlsplit(path).path.strip("/"), url=path, size=None)
        elif path.startswith("/") or ".." in path.split("/"):
            raise OSError(f"the list names {path!r}: expected URLs, or paths relative to {base}")
        else:
            yield _Listed(name=path, url=join(base, path), size=None)


def _read_paths(entry: str) -> list[str]:
    with _open(entry) as stream:
        data = stream.read(_MAX_LIST_BYTES)
        if data.startswith(b"\x1f\x8b"):
            stream.seek(0)
            with gzip.open(stream) as inflated:
                data = inflated.read(_MAX_LIST_BYTES)
    return [line.strip() for line in data.decode("utf-8").splitlines() if line.strip()]


def _base_of_list(entry: str, first: str) -> str:
    """What the paths of a list are relative to: what stands in the list's own URL before their first part, as in
    https://data.commoncrawl.org/crawl-data/…/warc.paths.gz. A list that was copied elsewhere: its own folder, if its
    first file lies there, or else Common Crawl's server for paths that begin as there."""
    url = entry if is_remote(entry) else local_path(entry)
    top = first.partition("/")[0]
    before, found, _ = url.partition(f"/{top}/")
    if found:
        return before
    folder = url.rpartition("/")[0]
    if top in _COMMON_CRAWL_TOP and (is_remote(url) or not Path(folder, first).exists()):
        return COMMON_CRAWL
    return folder


def _one_for_each_url(source: str, listed: Iterable[_Listed]) -> list[_Listed]:
    by_url: dict[str, _Listed] = {}
    for found in listed:
        known = by_url.setdefault(found.url, found)
        if known is not found:
            _log.warning("source %s: %s is listed twice; it counts once", source, found.url)
            by_url[found.url] = min(known, found, key=lambda either: either.name)
    return list(by_url.values())


def _one_for_each_name(source: str, listed: Sequence[_Listed]) -> Sequence[_Listed]:
    by_name: dict[str, _Listed] = {}
    for found in listed:
        known = by_name.setdefault(found.name, found)
        if known is not found:
            raise RecipeError(
                f"source.inputs of {source!r}: {known.url} and {found.url} would both be called {found.name!r} in the"
                " tables: reach them by one glob whose wildcard tells them apart, or make two sources"
            )
    return listed


def _size(source: str, found: _Listed) -> int:
    try:
        if found.size is not None:
            return found.size
        if _is_http(found.url):
            return http_size(found.url)
        return int(filesystem(found.url).size(found.url))
    except FileNotFoundError as error:
        raise RecipeError(f"source.inputs of {source!r}: there is no file {found.url}") from error
    except OSError as error:
        raise RecipeError(f"source.inputs of {source!r}: {found.url} cannot be read: {error}") from error
