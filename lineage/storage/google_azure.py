"""Google Cloud Storage (gs://) and Azure Blob Storage (az://), through fsspec: for inputs and exports.

Both come with packages of their own, gcsfs and adlfs, which are extras. Credentials are what these find in
the environment. No output lies there: its lock and its lineage tables need what is written for disks and S3
alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from fsspec.asyn import sync

from lineage.storage.clients import filesystem
from lineage.storage.errors import StorageError
from lineage.storage.folder import Folder

_WORK: Final = "work/"
"""Below this lie markers and claims, which hold no text."""


@contextmanager
def clear_errors(folder: Folder) -> Iterator[None]:
    """While the block runs, errors of a Google or Azure store become StorageErrors, as those of S3 and disks
    are."""
    try:
        yield
    except _errors_of(folder) as error:
        text = " ".join(str(error).split())
        raise StorageError(f"{folder.url}: the store fails ({type(error).__name__}: {text})") from error


def _errors_of(folder: Folder) -> tuple[type[Exception], ...]:
    """What the packages of the folder's store raise besides OSError; none for other stores, or without the
    package."""
    scheme = _scheme(folder)
    with suppress(ImportError):
        if scheme == "gs":
            from gcsfs.retry import HttpError
            from google.auth.exceptions import GoogleAuthError

            return HttpError, GoogleAuthError
        if scheme == "az":
            from azure.core.exceptions import AzureError

            return (AzureError,)
    return ()


def _scheme(folder: Folder) -> str:
    return urlsplit(folder.url).scheme if folder.is_remote else ""


def erase(folder: Folder) -> None:
    """Delete what a Google or Azure store still keeps of objects of `folder` that were deleted or written
    again. StorageError where it keeps some for a time (soft delete), or for good (the history of a repository on
    the Hugging Face Hub). Nothing to do elsewhere."""
    scheme = _scheme(folder)
    if scheme == "hf" and not folder.url.startswith("hf://buckets/"):
        raise StorageError(
            f"{folder.url}: the current files are clean, but the repository's history keeps what was deleted: squash"
            " it (huggingface_hub.HfApi().super_squash_history), delete the unreferenced LFS files in the"
            " repository's settings, and give the export up here with --forget-export, or export to hf://buckets/…"
        )
    num_kept = (
        _erase_google(folder.url) if scheme == "gs" else _erase_azure(folder.url) if scheme == "az" else 0
    )
    if num_kept:
        raise StorageError(
            f"the store still keeps {num_kept:,} deleted objects of {folder.url} (soft delete): switch that"
            " off for this bucket or account; what is kept already goes when its time is over"
        )


def _erase_google(url: str) -> int:
    """Delete noncurrent generations; how many objects soft delete keeps that may hold text."""
    store = filesystem(url)
    for found in _google_objects(url, versions="true"):
        if "timeDeleted" in found:
            store.call("DELETE", "b/{}/o/{}", found["bucket"], found["name"], generation=found["generation"])
    work = f"{_prefix(url)}{_WORK}"
    return sum(1 for found in _google_objects(url, softDeleted="true") if not found["name"].startswith(work))


def _google_objects(url: str, **which: str) -> Iterator[Mapping[str, str]]:
    """The objects below a folder, as the store's own listing tells them."""
    more: dict[str, str] = {}
    while True:
        try:
            page = filesystem(url).call(
                "GET", "b/{}/o", urlsplit(url).netloc, prefix=_prefix(url), json_out=True, **which, **more
            )
        except ValueError as error:  # gcsfs says so of a bad request
            raise StorageError(
                f"whether the store keeps what is deleted from {url} is unknown: {error}"
            ) from error
        yield from page.get("items", [])
        if "nextPageToken" not in page:
            return
        more = {"pageToken": page["nextPageToken"]}


def _erase_azure(url: str) -> int:
    """Delete former versions and snapshots; how many of them, and of deleted blobs, are there still that may
    hold text."""
    store, prefix = filesystem(url), _prefix(url)
    container = store.service_client.get_container_client(urlsplit(url).netloc)

    async def former() -> list[Any]:
        listed = container.list_blobs(name_starts_with=prefix, include=["deleted", "versions", "snapshots"])
        return [
            blob
            async for blob in listed
            if (blob.deleted or blob.snapshot or (blob.version_id and not blob.is_current_version))
            and not blob.name.startswith(prefix + _WORK)
        ]

    async def erased() -> int:
        for blob in await former():
            if not blob.deleted:
                await container.delete_blob(blob.name, version_id=blob.version_id, snapshot=blob.snapshot)
        return len(await former())

    return int(sync(store.loop, erased))


def _prefix(url: str) -> str:
    """What the names of all objects of a folder begin with."""
    return urlsplit(url).path.strip("/") + "/"
