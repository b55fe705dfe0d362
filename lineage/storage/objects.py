"""What S3 can do beyond files: conditional puts and deletes, an object's age by the server's clock, old
versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from lineage.storage.clients import filesystem
from lineage.storage.errors import NoBucketError, StorageError
from lineage.storage.folder import Folder

T = TypeVar("T")
_PRECONDITION = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as it was read: its content, its ETag, and its age in seconds by the server's own clock."""

    data: bytes
    etag: str
    age: float


def is_s3(url: str) -> bool:
    """Whether `url` lies in an S3 bucket."""
    return urlsplit(url).scheme == "s3"


def _bucket_and_key(url: str) -> tuple[str, str]:
    # Not split as a URL: a key may hold # and ?.
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return bucket, key


def _bucket_and_prefix(folder: Folder) -> tuple[str, str]:
    """The bucket, and what the keys of all objects in `folder` begin with: nothing where it is the whole
    bucket."""
    bucket, key = _bucket_and_key(folder.url)
    return bucket, f"{key}/" if key else ""


def _call(url: str, operation: str, **arguments: Any) -> Any:
    return filesystem(url).call_s3(operation, **arguments)


def _unless_precondition(call: Callable[[], T]) -> T | None:
    """What `call` gives; None where the object was not as the condition said. s3fs hides the code behind an
    OSError."""
    try:
        return call()
    except FileExistsError:
        return None
    except OSError as error:
        cause = error.__cause__
        if isinstance(cause, ClientError) and cause.response.get("Error", {}).get("Code") in _PRECONDITION:
            return None
        raise


def put_new(url: str, data: bytes) -> str | None:
    """Write an object that must not exist yet: its ETag, or None if one with other content does."""
    bucket, key = _bucket_and_key(url)
    reply = _unless_precondition(
        lambda: _call(url, "put_object", Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
    )
    return _etag_of_content(url, data) if reply is None else str(reply["ETag"])


def put_over(url: str, data: bytes, etag: str) -> str | None:
    """Replace the object that has `etag`: the new ETag, or None if it has other content by now, or is
    gone."""
    bucket, key = _bucket_and_key(url)
    try:
        reply = _unless_precondition(
            lambda: _call(url, "put_object", Bucket=bucket, Key=key, Body=data, IfMatch=etag)
        )
    except FileNotFoundError:
        return None
    return _etag_of_content(url, data) if reply is None else str(reply["ETag"])


def _etag_of_content(url: str, data: bytes) -> str | None:
    """The ETag of the object if it holds `data`, else None.

    The client tries a put again whose answer was lost, and the second try fails at what the first has
    written."""
    stored = get(url)
    return stored.etag if stored is not None and stored.data == data else None


def delete_exactly(url: str, etag: str) -> bool:
    """Delete the object that has `etag`; False if it is another by now."""
    bucket, key = _bucket_and_key(url)
    return (
        _unless_precondition(lambda: _call(url, "delete_object", Bucket=bucket, Key=key, IfMatch=etag))
        is not None
    )


def get(url: str) -> StoredObject | None:
    """The object, or None if there is none. The age compares two times of the server, so no clock here
    matters."""
    bucket, key = _bucket_and_key(url)
    # The body is read apart: inside s3fs's loop, where its connection lives.
    try:
        head = _call(url, "head_object", Bucket=bucket, Key=key)
        data = filesystem(url).cat_file(url)
    except FileNotFoundError:
        return None
    served = parsedate_to_datetime(head["ResponseMetadata"]["HTTPHeaders"]["date"])
    return StoredObject(
        data=data, etag=str(head["ETag"]), age=(served - head["LastModified"]).total_seconds()
    )


def why_no_bucket(folder: Folder) -> str | None:
    """That the bucket of `folder` is not there, in words; None where it is, or cannot be listed. (A question
    for one object is answered alike in both cases.)"""
    bucket, _ = _bucket_and_key(folder.url)
    try:
        _call(folder.url, "list_objects_v2", Bucket=bucket, MaxKeys=1)
    except NoBucketError as error:
        return str(error)
    except PermissionError:
        return None
    return None


def keeps_old_versions(folder: Folder) -> bool:
    """Whether deleting an object of `folder` leaves its bytes in an older version (versioning on or
    suspended)."""
    if not is_s3(folder.url):
        return False
    bucket, _ = _bucket_and_key(folder.url)
    return bool(_call(folder.url, "get_bucket_versioning", Bucket=bucket).get("Status"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of an object (or a delete marker): the object's name within its folder, and the version's
    id."""

    name: str
    version_id: str
    is_latest: bool
    is_marker: bool


def versions(folder: Folder, under: str) -> Iterator[Version]:
    """Every version of every object whose name begins with `under`, delete markers included."""
    bucket, prefix = _bucket_and_prefix(folder)
    more: dict[str, str] = {}
    while True:
        page = _call(folder.url, "list_object_versions", Bucket=bucket, Prefix=prefix + under, **more)
        for kind in ("Versions", "DeleteMarkers"):
            for entry in page.get(kind, []):
                yield Version(
                    name=entry["Key"].removeprefix(prefix),
                    version_id=entry["VersionId"],
                    is_latest=entry["IsLatest"],
                    is_marker=kind == "DeleteMarkers",
                )
        if not page.get("IsTruncated"):
            return
        more = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}


def delete_versions(folder: Folder, doomed: Iterable[Version]) -> None:
    """Delete these versions for good; StorageError names one that the bucket keeps (object lock, no
    permission)."""
    bucket, prefix = _bucket_and_prefix(folder)
    for version in doomed:
        key = prefix + version.name
        try:
            _call(folder.url, "delete_object", Bucket=bucket, Key=key, VersionId=version.version_id)
        except OSError as error:
            raise StorageError(
                f"s3://{bucket}/{key} version {version.version_id} cannot be deleted: {error}. Allow "
                "s3:DeleteObjectVersion and lift any object lock, then call the same command again"
            ) from error


def abort_uploads(folder: Folder, under: str) -> None:
    """End every multipart upload under a name beginning with `under`: its parts are bytes that no listing
    shows."""
    bucket, prefix = _bucket_and_prefix(folder)
    more: dict[str, str] = {}
    while True:
        page = _call(folder.url, "list_multipart_uploads", Bucket=bucket, Prefix=prefix + under, **more)
        for upload in page.get("Uploads", []):
            _call(
                folder.url,
                "abort_multipart_upload",
                Bucket=bucket,
                Key=upload["Key"],
                UploadId=upload["UploadId"],
            )
        if not page.get("IsTruncated"):
            return
        more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
