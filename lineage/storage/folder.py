"""Folders on disk or in an object store, with the one promise everything rests on: a file appears whole or
not at all.

Names inside a Folder are relative and use "/". On disk a file is written under a temporary name that is
unique to the attempt, synced and renamed; in an object store it is spooled to local disk and put in one
request.

What `publish`, `publish_new` and `mark` write vouches for what the process wrote before: that is on the disk,
with its folders, before the name appears, and the name is when the first two return. What `write`, `writing`,
`publish_link` and the removals do is on the disk when the next of these, or `sync`, returns (see `durable`).

The temporary files of `name` lie in a folder `.tmp-name` beside it, each locked (flock) by its writer for as
long as that lives. So the next writer of `name` finds what dead writers left without listing a large folder,
and removes it."""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

from lineage.recipe import RecipeError
from lineage.secrets import without_secrets
from lineage.storage.clients import (
    SECRET_PREFIX,
    delta_options,
    filesystem,
    is_remote,
    object_store_settings,
)
from lineage.storage.durable import (
    entry_changed,
    make_folder,
    sync_file,
    sync_folders,
    sync_tree,
    tree_removed,
)
from lineage.storage.errors import FULL, ForbiddenError, StorageError, UnreachableError
from lineage.storage.temporary import (
    PREFIX,
    drop_dead,
    is_temporary,
    naming_full_disks,
    remove_empty,
    temporary_file,
)

__all__ = (
    "FULL", "SECRET_PREFIX", "Folder", "ForbiddenError", "StorageError", "UnreachableError", "delta_options",
    "filesystem", "is_remote", "join", "kind_of", "local_path", "not_for_tables",
    "object_store_settings", "split", "with_environment",
)  # fmt: skip
"""What other packages take of storage: that of the modules below, too."""

_NO_PLACE_OF_TABLES = r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f]"
_NO_URL_OF_TABLES = _NO_PLACE_OF_TABLES + r"|[#?]|//|/\.{1,2}(?=/|\Z)"
"""What deltalake's URLs have another meaning for: it would look for tables elsewhere than we do."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def with_environment(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """`url` with every `${SLUICE_SECRET_…}` in its user part or query replaced by that variable: so
    credentials need not stand in a recipe. RecipeError if a variable is not set or has another name, or
    stands elsewhere in the URL, where it would be recorded."""
    scheme, found, rest = url.partition("://")
    if not found or "${" not in rest:
        return url
    user, at, host_and_path = rest.rpartition("@") if "@" in rest.partition("?")[0] else ("", "", rest)
    place, mark, query = host_and_path.partition("?")
    if "${" in place:
        raise RecipeError(
            f"{without_secrets(url)}: a variable can stand for credentials only, before @ or behind ?"
        )

    def value(name: re.Match[str]) -> str:
        if not name[1].startswith(SECRET_PREFIX):
            raise RecipeError(
                f"{without_secrets(url)}: {name[1]!r}: expected a variable whose name begins with"
                f" {SECRET_PREFIX}"
            )
        if name[1] not in environment:
            raise RecipeError(
                f"{without_secrets(url)}: the variable {name[1]} is not set; it holds the credentials"
            )
        return environment[name[1]]

    filled = [_VARIABLE.sub(value, part) for part in (user, query)]
    return f"{scheme}{found}{filled[0]}{at}{place}{mark}{filled[1]}"


def local_path(url: str) -> str:
    """The absolute path that a local `url` (a path, or file://) names."""
    return os.path.abspath(url.removeprefix("file://"))


def join(url: str, *names: str) -> str:
    """`url` with names below it."""
    return "/".join([url.rstrip("/"), *(name.strip("/") for name in names)])


def not_for_tables(url: str) -> str | None:
    """What in the path or URL of an output keeps lineage tables from lying there; None where nothing does."""
    remote = is_remote(url)
    pattern = _NO_URL_OF_TABLES if remote else _NO_PLACE_OF_TABLES
    found = re.search(pattern, url.partition("://")[2].rstrip("/") if remote else url)
    return found and found[0]


def kind_of(url: str) -> str | None:
    """What lies at a path or URL: "file" or "directory", None if nothing does. A store that fails or refuses
    raises its error: fsspec's own isfile takes that for "no such file"."""
    if not is_remote(url):
        path = local_path(url)
        return "file" if os.path.isfile(path) else "directory" if os.path.isdir(path) else None
    try:
        return str(filesystem(url).info(url)["type"])
    except FileNotFoundError:
        return None


def split(url: str) -> tuple[Folder, str]:
    """The folder that a file lies in, and its name there."""
    folder, _, name = (url if is_remote(url) else local_path(url)).rpartition("/")
    return Folder(folder or "/"), name


class Folder:
    """A folder at a path or URL. Cheap to make, picklable, holds no connection."""

    def __init__(self, url: str, root: str | None = None) -> None:
        self.url = url.rstrip("/") if is_remote(url) else local_path(url)
        self.is_remote = is_remote(url)
        self._root = self.url if root is None else root

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    def at(self, name: str) -> str:
        """The path or URL of `name`."""
        return join(self.url, name) if name else self.url

    def folder(self, name: str) -> Folder:
        """A folder below this one."""
        return Folder(self.at(name), self._root)

    def open(self, name: str) -> BinaryIO:
        """`name` opened for reading, seekable; FileNotFoundError if it is not there."""
        if not self.is_remote:
            return open(self.at(name), "rb")
        return cast(BinaryIO, filesystem(self.url).open(self.at(name), "rb", cache_type="readahead"))

    def read(self, name: str) -> bytes:
        """The whole content of `name`."""
        if not self.is_remote:
            return Path(self.at(name)).read_bytes()
        return cast(bytes, filesystem(self.url).cat_file(self.at(name)))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Up to `length` bytes of `name` from byte `start`."""
        if not self.is_remote:
            with open(self.at(name), "rb") as file:
                file.seek(start)
                return file.read(length)
        return cast(bytes, filesystem(self.url).cat_file(self.at(name), start=start, end=start + length))

    def publish(self, name: str, data: bytes) -> None:
        """`data` as the content of `name`, whole or not at all; what stood there before is replaced. It is on
        the disk after all that this process wrote before, and before this returns."""
        self.sync()
        self.write(name, data)
        self.sync()

    def write(self, name: str, data: bytes) -> None:
        """The same of a file that vouches for nothing: it is on the disk when the next that does is
        published."""
        with self.writing(name) as file:
            file.write(data)

    def mark(self, name: str, data: bytes) -> None:
        """`write` a file that says that work is done, once all that this process wrote is on the disk. Its
        own name may be lost with the power: the work is done again then."""
        self.sync()
        self.write(name, data)

    def publish_link(self, name: str, path: str) -> bool:
        """The local file `path` under another name here, at no cost in bytes; False, and nothing is done,
        where the two do not lie on one local file system. What stood there before is replaced."""
        if self.is_remote or is_remote(path):
            return False
        target = Path(self.at(name))
        folder = target.with_name(PREFIX + target.name)
        temporary = folder / uuid.uuid4().hex
        make_folder(str(folder), self._root)
        try:
            os.link(path, temporary)
            os.replace(temporary, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            return False
        finally:
            temporary.unlink(missing_ok=True)  # renaming one name of a file over another does nothing
            remove_empty(folder)
        entry_changed(str(target), self._root)
        return True

    def publish_new(self, name: str, data: bytes) -> bool:
        """`publish` unless `name` exists already, decided atomically; says whether it was written."""
        if self.is_remote:
            try:
                filesystem(self.url).pipe_file(self.at(name), data, mode="create")
            except FileExistsError:
                return False
            return True
        target = Path(self.at(name))
        self.sync()
        make_folder(str(target.parent), self._root)
        with temporary_file(target) as (file, temporary):
            file.write(data)
            file.sync()
            is_new = True
            try:
                os.link(temporary, target)
            except FileExistsError:
                is_new = False
        entry_changed(str(target), self._root)
        self.sync()
        return is_new

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A binary file to write; it becomes `name` when the block ends, and vanishes if the block raises."""
        if self.is_remote:
            # The spool has no name, so that a killed process leaves none behind; the client opens it by its
            # descriptor.
            with tempfile.TemporaryFile() as spool:
                with naming_full_disks(tempfile.gettempdir()):
                    yield cast(IO[bytes], spool)
                    spool.flush()
                filesystem(self.url).put_file(f"/proc/{os.getpid()}/fd/{spool.fileno()}", self.at(name))
            return
        target = Path(self.at(name))
        with naming_full_disks(str(target)):
            make_folder(str(target.parent), self._root)
            with temporary_file(target) as (file, temporary):
                yield file
                file.sync()
                # Renamed while the lock is held: no other writer can take this one for dead in between.
                os.replace(temporary, target)
        entry_changed(str(target), self._root)

    def sync(self) -> None:
        """Return when all that this process published and removed is on the disk. In an object store each is
        durable when its request is answered."""
        if not self.is_remote:
            sync_folders()

    def sync_all(self, without: str) -> None:
        """The same of every name at and below this folder, whichever process changed it, but for those below
        `without`."""
        if not self.is_remote:
            sync_tree(self.url, without)

    def sync_content(self, name: str) -> None:
        """Return when what a library wrote to `name` is on the disk; its name is after the next `sync`."""
        if not self.is_remote:
            sync_file(self.at(name))
            entry_changed(self.at(name), self._root)

    def exists(self, name: str) -> bool:
        """Whether `name` is a file here."""
        return kind_of(self.at(name)) == "file"

    def size(self, name: str) -> int:
        """Bytes of `name`; FileNotFoundError if it is not there."""
        if not self.is_remote:
            return os.path.getsize(self.at(name))
        return int(filesystem(self.url).size(self.at(name)))

    def names(self, under: str = "") -> list[str]:
        """Every file below `under`, relative to this folder, sorted; none if there is no such folder.
        Temporary files of attempts under way are left out."""
        if not self.is_remote:
            return sorted(_walk_local(Path(self.at(under)), Path(self.url)))
        prefix = self.at("").split("://", 1)[1].rstrip("/") + "/"
        try:
            found = filesystem(self.url).find(self.at(under))
        except FileNotFoundError:
            return []
        return sorted(path.split("://", 1)[-1].removeprefix(prefix) for path in found)

    def folders(self) -> list[str]:
        """The folders right below this one, sorted; on a disk the empty ones too, but none of temporary
        files."""
        if self.is_remote:
            return sorted({name.partition("/")[0] for name in self.names() if "/" in name})
        try:
            with os.scandir(self.url) as entries:
                return sorted(
                    entry.name for entry in entries if entry.is_dir() and not is_temporary(entry.name)
                )
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Delete the file `name`; nothing happens if it is gone already."""
        if not self.is_remote:
            Path(self.at(name)).unlink(missing_ok=True)
            entry_changed(self.at(name), self._root)
        elif self.exists(name):
            filesystem(self.url).rm_file(self.at(name))

    def is_begun(self, name: str) -> bool:
        """Whether a writer is at `name`, or died at it or failed; never in an object store."""
        return not self.is_remote and os.path.exists(
            Path(self.at(name)).with_name(PREFIX + os.path.basename(name))
        )

    def drop_dead(self, prefix: str) -> None:
        """Remove what dead writers left of files whose path here begins with `prefix`; an object store keeps
        none."""
        if not self.is_remote:
            start = Path(self.at(prefix))
            for folder in start.parent.glob(f"{PREFIX}{glob.escape(start.name)}*"):
                drop_dead(folder)

    def drop_all_dead(self) -> None:
        """The same of every file at and below this folder."""
        if not self.is_remote:
            for top, folders, _ in os.walk(self.url):
                for name in folders:
                    if name.startswith(PREFIX):
                        drop_dead(Path(top, name))
                folders[:] = [name for name in folders if not name.startswith(PREFIX)]

    def move(self, name: str, to: str, *, last: str) -> None:
        """Move the folder `name` to `to`, which is not there. At once on a disk. An object store copies each
        file, the one called `last` at the end, and deletes that one first: so a folder that has it is whole,
        here and there."""
        if not self.is_remote:
            make_folder(os.path.dirname(self.at(to)), self._root)
            os.replace(self.at(name), self.at(to))
            tree_removed(self.at(name), self._root)
            entry_changed(self.at(to), self._root)
            return
        files = [file.removeprefix(f"{name}/") for file in self.names(name)]
        for file in sorted(files, key=lambda file: (file == last, file)):
            filesystem(self.url).cp_file(self.at(f"{name}/{file}"), self.at(f"{to}/{file}"))
        self.remove(f"{name}/{last}")
        self.remove_tree(name)

    def remove_tree(self, name: str) -> None:
        """Delete everything below `name`; nothing happens if it is gone already. OSError names the first that
        cannot be deleted: the same call again goes on."""
        if not self.is_remote:
            remove_local_tree(self.at(name))
            tree_removed(self.at(name), self._root)
        else:
            for file in self.names(name):
                filesystem(self.url).rm_file(self.at(file))


def remove_local_tree(path: str) -> None:
    """Delete a local folder and all below it; nothing happens if it is gone already. OSError names the first
    path that cannot be deleted."""

    def refuse(_act: object, name: str, raised: tuple[type[BaseException], BaseException, object]) -> None:
        error = raised[1]
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise StorageError(error.errno, os.strerror(error.errno or 0), name) from error

    shutil.rmtree(path, onerror=refuse)


def _walk_local(top: Path, root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(PREFIX)]
        for file in files:
            if not file.startswith(PREFIX):
                yield os.path.relpath(os.path.join(folder, file), root)
