"""Folders on disk or in an object store, with the one promise everything rests on: a file appears whole or not at all.

Names inside a Folder are relative and use "/". On disk a file is written under a temporary name that is unique to
the attempt, synced and renamed; in an object store it is spooled to local disk and put in one request.

The temporary files of `name` lie in a folder `.tmp-name` beside it, each locked (flock) by its writer for as long as
that lives. So the next writer of `name` finds what dead writers left without listing a large folder, and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from urllib.parse import urlsplit

import fsspec

from lineage.recipe import RecipeError
from lineage.secrets import redact_log, without_secrets

REMOTE_SCHEMES = ("s3", "gs", "az", "https", "http")
SECRET_PREFIX = "SLUICE_SECRET_"
"""Of the variables that a recipe may name in a URL. No others: a recipe of another person could send any."""

_TEMPORARY = ".tmp-"
for _name in ("fsspec", "fsspec.http", "fsspec.generic"):
    logging.getLogger(_name).addFilter(redact_log)
_NO_PLACE_OF_TABLES = r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f]"
_NO_URL_OF_TABLES = _NO_PLACE_OF_TABLES + r"|[#?]|//|/\.{1,2}(?=/|\Z)"
"""What deltalake's URLs have another meaning for: it would look for tables elsewhere than we do."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The system's numbers for a disk that is full and a quota that is used up."""


class StorageError(OSError):
    """A file or folder cannot be read or written; the message names it and says what to do."""


class UnreachableError(StorageError):
    """The store does not answer, or fails whatever is asked of it."""


class ForbiddenError(StorageError, PermissionError):
    """The store refuses: keys are missing, wrong, or may not do this."""


def is_remote(url: str) -> bool:
    """Whether `url` lies in an object store or on a web server; RecipeError for a scheme that we do not read."""
    scheme, found, _ = url.partition("://")
    if found and scheme not in (*REMOTE_SCHEMES, "file"):
        raise RecipeError(f"{url!r}: expected a path, file://, s3://, gs://, az:// or https://, not {scheme}://")
    return found != "" and scheme in REMOTE_SCHEMES


def with_environment(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """`url` with every `${SLUICE_SECRET_…}` in its user part or query replaced by that variable: so credentials need
    not stand in a recipe. RecipeError if a variable is not set or has another name, or stands elsewhere in the URL,
    where it would be recorded."""
    scheme, found, rest = url.partition("://")
    if not found or "${" not in rest:
        return url
    user, at, host_and_path = rest.rpartition("@") if "@" in rest.partition("?")[0] else ("", "", rest)
    place, mark, query = host_and_path.partition("?")
    if "${" in place:
        raise RecipeError(f"{without_secrets(url)}: a variable can stand for credentials only, before @ or behind ?")

    def value(name: re.Match[str]) -> str:
        if not name[1].startswith(SECRET_PREFIX):
            raise RecipeError(
                f"{without_secrets(url)}: {name[1]!r}: expected a variable whose name begins with {SECRET_PREFIX}"
            )
        if name[1] not in environment:
            raise RecipeError(f"{without_secrets(url)}: the variable {name[1]} is not set; it holds the credentials")
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


def object_store_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The AWS_*, AZURE_STORAGE_* and SLUICE_SECRET_* variables of an environment, by name: the settings for object
    stores, and the credentials for web servers."""
    prefixes = ("AWS_", "AZURE_STORAGE_", SECRET_PREFIX)
    return {name: value for name, value in sorted(environment.items()) if name.startswith(prefixes)}


def filesystem(url: str) -> Any:
    """The fsspec file system that `url` belongs to. S3 takes its endpoint, region and keys from the usual AWS_*
    variables and goes anonymous where there are no keys (or with AWS_NO_SIGN_REQUEST=1). The role of an EC2 instance is
    asked for with AWS_EC2_METADATA_DISABLED=false. gs:// and az:// take what gcsfs and adlfs find in the environment;
    RecipeError where that package is not installed."""
    scheme = urlsplit(url).scheme if is_remote(url) else "file"
    if scheme not in ("s3", "gs", "az"):
        return _filesystem(scheme, os.getpid(), False, ())
    # A process may come to other settings (a worker that serves one job after another): they get a client of their own.
    settings = tuple(object_store_settings().items())
    return _filesystem(scheme, os.getpid(), _s3_anonymous(), settings)


def _s3_anonymous() -> bool:
    if os.environ.get("AWS_NO_SIGN_REQUEST", "").lower() in ("1", "true", "yes"):
        return True
    named = (
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_SHARED_CREDENTIALS_FILE",
    )
    if any(os.environ.get(name) for name in named) or (Path.home() / ".aws" / "credentials").exists():
        return False
    return os.environ.get("AWS_EC2_METADATA_DISABLED", "true").lower() == "true"


@functools.lru_cache(maxsize=16)
def _filesystem(scheme: str, process: int, anonymous: bool, settings: tuple[tuple[str, str], ...]) -> Any:
    # A cached S3 or HTTP client holds an event loop that does not survive a fork: so one for each process.
    if scheme == "s3":
        from lineage.storage.s3_client import S3Client

        return S3Client(anon=anonymous, use_listings_cache=False, skip_instance_cache=True, default_block_size=16 << 20)
    if scheme in ("gs", "az"):
        from lineage.storage.google_azure import azure_store, google_store

        return google_store() if scheme == "gs" else azure_store()
    if scheme in ("http", "https"):
        return fsspec.filesystem(scheme, skip_instance_cache=True)
    return fsspec.filesystem("file")


def delta_options(url: str) -> dict[str, str]:
    """The storage_options that deltalake takes for `url` (its own names for the AWS_* variables)."""
    if urlsplit(url).scheme != "s3":
        return {}
    options = {name: value for name, value in object_store_settings().items() if name.startswith("AWS_")}
    options.setdefault("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION", "us-east-1"))
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    if _s3_anonymous():
        options["AWS_SKIP_SIGNATURE"] = "true"
    return options


def kind_of(url: str) -> str | None:
    """What lies at a path or URL: "file" or "directory", None if nothing does. A store that fails or refuses raises
    its error: fsspec's own isfile takes that for "no such file"."""
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

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") if is_remote(url) else local_path(url)
        self.is_remote = is_remote(url)

    def __repr__(self) -> str:
        return f"Folder({self.url!r})"

    def at(self, name: str) -> str:
        """The path or URL of `name`."""
        return join(self.url, name) if name else self.url

    def folder(self, name: str) -> Folder:
        """A folder below this one."""
        return Folder(self.at(name))

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
        """`data` as the content of `name`, whole or not at all; what stood there before is replaced."""
        with self.writing(name) as file:
            file.write(data)

    def publish_link(self, name: str, path: str) -> bool:
        """The local file `path` under another name here, at no cost in bytes; False, and nothing is done, where the two
        do not lie on one local file system. What stood there before is replaced."""
        if self.is_remote or is_remote(path):
            return False
        target = Path(self.at(name))
        folder = target.with_name(_TEMPORARY + target.name)
        temporary = folder / uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, temporary)
            os.replace(temporary, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            return False
        finally:
            temporary.unlink(missing_ok=True)  # renaming one name of a file over another does nothing
            with contextlib.suppress(OSError):
                folder.rmdir()
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
        with _naming_full_disks(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            with _temporary(target) as (file, temporary):
                file.write(data)
                file.flush()
                try:
                    os.link(temporary, target)
                except FileExistsError:
                    return False
        return True

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A binary file to write; it becomes `name` when the block ends, and vanishes if the block raises."""
        if self.is_remote:
            # The spool has no name, so that a killed process leaves none behind; the client opens it by its descriptor.
            with tempfile.TemporaryFile() as spool:
                with _naming_full_disks(tempfile.gettempdir()):
                    yield cast(IO[bytes], spool)
                    spool.flush()
                filesystem(self.url).put_file(f"/proc/{os.getpid()}/fd/{spool.fileno()}", self.at(name))
            return
        target = Path(self.at(name))
        with _naming_full_disks(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            with _temporary(target) as (file, temporary):
                yield file
                file.flush()
                os.fsync(file.fileno())
                # Renamed while the lock is held: no other writer can take this one for dead in between.
                os.replace(temporary, target)

    def exists(self, name: str) -> bool:
        """Whether `name` is a file here."""
        return kind_of(self.at(name)) == "file"

    def size(self, name: str) -> int:
        """Bytes of `name`; FileNotFoundError if it is not there."""
        if not self.is_remote:
            return os.path.getsize(self.at(name))
        return int(filesystem(self.url).size(self.at(name)))

    def names(self, under: str = "") -> list[str]:
        """Every file below `under`, relative to this folder, sorted; none if there is no such folder. Temporary
        files of attempts under way are left out."""
        if not self.is_remote:
            return sorted(_walk_local(Path(self.at(under)), Path(self.url)))
        prefix = self.at("").split("://", 1)[1].rstrip("/") + "/"
        try:
            found = filesystem(self.url).find(self.at(under))
        except FileNotFoundError:
            return []
        return sorted(path.split("://", 1)[-1].removeprefix(prefix) for path in found)

    def remove(self, name: str) -> None:
        """Delete the file `name`; nothing happens if it is gone already."""
        if not self.is_remote:
            Path(self.at(name)).unlink(missing_ok=True)
        elif self.exists(name):
            filesystem(self.url).rm_file(self.at(name))

    def move(self, name: str, to: str, *, last: str) -> None:
        """Move the folder `name` to `to`, which is not there. At once on a disk. An object store copies each file, the
        one called `last` at the end, and deletes that one first: so a folder that has it is whole, here and there."""
        if not self.is_remote:
            Path(self.at(to)).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.at(name), self.at(to))
            return
        files = [file.removeprefix(f"{name}/") for file in self.names(name)]
        for file in sorted(files, key=lambda file: (file == last, file)):
            filesystem(self.url).cp_file(self.at(f"{name}/{file}"), self.at(f"{to}/{file}"))
        self.remove(f"{name}/{last}")
        self.remove_tree(name)

    def remove_tree(self, name: str) -> None:
        """Delete everything below `name`."""
        if not self.is_remote:
            shutil.rmtree(self.at(name), ignore_errors=True)
        else:
            for file in self.names(name):
                filesystem(self.url).rm_file(self.at(file))


@contextmanager
def _naming_full_disks(path: str) -> Iterator[None]:
    """A full disk, or a quota that is used up, as a StorageError that names the file: the system's error does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, StorageError):
            raise
        raise StorageError(error.errno, os.strerror(error.errno), path) from error


@contextmanager
def _temporary(target: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A locked, empty file to write in, and its path; gone at the end unless it was renamed. What dead writers of
    `target` left is removed."""
    folder = target.with_name(_TEMPORARY + target.name)
    file = None
    while file is None:
        path = folder / uuid.uuid4().hex
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        with contextlib.suppress(FileNotFoundError):  # another writer has just removed the empty folder
            _remove_dead(folder)
            file = _locked_file(path)
    try:
        with file:
            yield file, path
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: other writers are at work, or died
            folder.rmdir()


def _locked_file(path: Path) -> BinaryIO | None:
    """A new file at `path` that others can see to have a live writer; None if one of them took it for dead before, and
    removes it."""
    file = open(path, "xb")  # noqa: SIM115 - it stays open for the caller
    if _lock(file.fileno()) is not False and os.fstat(file.fileno()).st_nlink:
        return file
    file.close()
    return None


def _remove_dead(folder: Path) -> None:
    """Remove the files of `folder` whose writers are dead: those without a lock."""
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError), open(folder / name, "rb") as file:
            if _lock(file.fileno()):
                # Under the lock: a writer that has made the file and not yet locked it will see that it is gone.
                (folder / name).unlink(missing_ok=True)


def _lock(descriptor: int) -> bool | None:
    """Whether this descriptor has the file's lock now; None where the file system has no locks: then a dead
    writer looks like a live one."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_temporary(path: str) -> bool:
    """Whether a path names a temporary file of a writer, or a folder of them."""
    return any(part.startswith(_TEMPORARY) for part in path.split("/"))


def _walk_local(top: Path, root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith(_TEMPORARY)]
        for file in files:
            if not file.startswith(_TEMPORARY):
                yield os.path.relpath(os.path.join(folder, file), root)
