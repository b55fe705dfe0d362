"""The S3 client: s3fs, whose every error says in one sentence which object was asked for, what is wrong and
what to do.

Types stay what s3fs and its callers look for: what is absent is a FileNotFoundError, what is forbidden a
PermissionError, and the cause is the server's own answer.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import s3fs
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from fsspec.asyn import sync_wrapper

from lineage.secrets import without_secrets
from lineage.storage.errors import ForbiddenError, NoBucketError, UnreachableError

_NO_KEYS = (NoCredentialsError, PartialCredentialsError, ProfileNotFound)
_BUSY = (errno.EREMOTEIO, errno.EBUSY)


class S3Client(s3fs.S3FileSystem):  # type: ignore[misc]
    """s3fs with errors for people."""

    async def _call_s3(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return await super()._call_s3(method, *arguments, **options)
        except ParamValidationError:
            raise
        except (BotoCoreError, OSError) as error:
            asked: dict[str, object] = {}
            for given in (*arguments, options):
                asked |= given if isinstance(given, dict) else {}
            clear = clear_error(error, _place(asked), anonymous=bool(self.anon))
            if clear is error:
                raise
            raise clear from error.__cause__ or error

    call_s3 = sync_wrapper(_call_s3)

    # fsspec takes every error for "no such file", also that of a store which fails: then a purge would leave
    # a file in place that it could not see, and an index of checksums would be begun anew.
    async def _isfile(self, path: str) -> bool:
        return await self._is(path, "file")

    async def _isdir(self, path: str) -> bool:
        return await self._is(path, "directory")

    async def _is(self, path: str, kind: str) -> bool:
        try:
            return bool((await self._info(path))["type"] == kind)
        except FileNotFoundError:
            return False


def _place(asked: dict[str, object]) -> str:
    name = asked.get("Key") or asked.get("Prefix") or ""
    return f"s3://{asked['Bucket']}/{name}".rstrip("/") if "Bucket" in asked else "the object store"


def clear_error(error: BaseException, place: str, *, anonymous: bool) -> BaseException:
    """The error to raise in place of `error`: the same one where it says what is absent or what a caller
    looks for."""
    store = _store()
    if isinstance(error, _NO_KEYS):
        return ForbiddenError(
            f"{place}: there are no keys for {store} ({error}): set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY, a profile that exists, or AWS_NO_SIGN_REQUEST=1 for public data"
        )
    if isinstance(error, BotoCoreError | TimeoutError):
        return UnreachableError(
            f"{place}: {store} does not answer ({_reason(error)}): check AWS_ENDPOINT_URL, AWS_REGION and the"
            " network, then make the same call again"
        )
    if isinstance(error, PermissionError):
        keys = (
            "no keys are set, so it was asked anonymously: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            if anonymous
            else "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what these keys may do"
        )
        return ForbiddenError(
            f"{place}: {store} refuses ({error.args[-1] if error.args else 'forbidden'}); {keys}"
        )
    if isinstance(error, FileNotFoundError) and _code(error) == "NoSuchBucket":
        return NoBucketError(
            f"{place}: {store} has no such bucket: make it, or check the name and AWS_ENDPOINT_URL"
        )
    if (
        isinstance(error, OSError)
        and error.errno in _BUSY
        and _code(error).startswith(("5", "Internal", "Slow", "Serv"))
    ):
        return UnreachableError(
            error.errno,
            f"{place}: {store} fails ({error.args[-1]}): make the same call again when it is well",
        )
    return error


def _store() -> str:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return f"the store at {without_secrets(endpoint)}" if endpoint else "S3"


def _reason(error: BaseException) -> str:
    """What broke, without the URL that the libraries repeat (it may hold a signature)."""
    if isinstance(error, HTTPClientError) and error.kwargs.get("error") is not None:
        inner = error.kwargs["error"]
        return (
            f"{type(error).__name__}: {getattr(inner, 'strerror', None) or getattr(inner, 'os_error', inner)}"
        )
    return type(error).__name__


def _code(error: BaseException) -> str:
    cause = error.__cause__
    return str(cause.response.get("Error", {}).get("Code", "")) if isinstance(cause, ClientError) else ""
