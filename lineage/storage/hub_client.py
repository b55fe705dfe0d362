"""The client of the Hugging Face Hub (hf://): huggingface_hub's file system, with errors for people, and without
listings that are out of date.

A commit never changes, so what was listed of one is kept. A branch, a tag and a bucket change: of them
everything is asked for anew."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

from httpx2 import HTTPError
from huggingface_hub import HfFileSystem
from huggingface_hub.errors import (
    BucketNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HfUriError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, parse_hf_uri

from lineage.storage.errors import ForbiddenError, StorageError, UnreachableError

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TOKEN_HINT: Final = "if it is private or gated, set HF_TOKEN to a token that may read it (hf auth login)"


class HubClient(HfFileSystem):  # type: ignore[misc]
    """huggingface_hub's file system. HF_ENDPOINT and HF_TOKEN are those of the environment as the client is
    made."""

    cachable = False

    def __init__(self) -> None:
        endpoint = (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None
        super().__init__(endpoint=endpoint, token=os.environ.get("HF_TOKEN") or None)
        self._asking = threading.RLock()  # a listing is read from the cache that another thread may empty

    def commit_of(self, url: str) -> str | None:
        """The commit that the revision of an hf:// URL names now; None for a bucket, which has none.
        FileNotFoundError or another OSError says in a sentence what is wrong."""
        with clear_errors(url):
            parsed = parse_hf_uri(url)
            if parsed.is_bucket:
                self._api.bucket_info(parsed.id)
                return None
            info = self._api.repo_info(parsed.id, revision=parsed.revision, repo_type=parsed.type)
            return str(info.sha)

    def address(self, url: str) -> tuple[str, dict[str, str]]:
        """The web address of a file, and the headers with which it is asked for: they hold the token."""
        parsed = parse_hf_uri(url)
        if parsed.is_bucket:
            place: str = f"{self.endpoint}/buckets/{parsed.id}/resolve/{quote(parsed.path_in_repo)}"
        else:
            from huggingface_hub import hf_hub_url

            place = hf_hub_url(
                parsed.id,
                parsed.path_in_repo,
                repo_type=parsed.type,
                revision=parsed.revision,
                endpoint=self.endpoint,
            )
        headers = build_hf_headers(token=self.token)
        return place, {name: value for name, value in headers.items() if name.lower() == "authorization"}

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        with clear_errors(path), self._asking:
            self._forget(path)
            return super().ls(path, detail=detail, **more)

    def find(self, path: str, *arguments: Any, **more: Any) -> Any:
        with clear_errors(path), self._asking:
            self._forget(path)
            return super().find(path, *arguments, **more)

    def info(self, path: str, **more: Any) -> Any:
        with clear_errors(path):
            url = f"hf://{self._strip_protocol(path)}"
            if is_pinned(url):
                return super().info(path, **more)
            parsed = parse_hf_uri(url)
            if parsed.is_bucket and parsed.path_in_repo:
                # One file of many, without a listing of its folder.
                for found in self._api.get_bucket_paths_info(parsed.id, [parsed.path_in_repo]):
                    return {
                        "name": self._strip_protocol(path),
                        "type": "file",
                        "size": found.size,
                        "xet_hash": found.xet_hash,
                    }
            with self._asking:
                self.invalidate_cache()
                return super().info(path, **more)

    def _open(self, path: str, *arguments: Any, **more: Any) -> Any:
        with clear_errors(path):
            return super()._open(path, *arguments, **more)

    # fsspec takes every error for "no such file": a purge would leave in place what it could not see.
    def exists(self, path: str, **more: Any) -> bool:
        try:
            self.info(path, **more)
        except FileNotFoundError:
            return False
        return True

    def rm_file(self, path: str) -> None:
        with clear_errors(path):
            self._rm(path)

    def _forget(self, path: str) -> None:
        if not is_pinned(f"hf://{self._strip_protocol(path)}"):
            self.invalidate_cache()


def is_pinned(url: str) -> bool:
    """Whether an hf:// URL names a commit."""
    with clear_errors(url):
        return _COMMIT.fullmatch(parse_hf_uri(url).revision or "") is not None


def revision_of(url: str) -> str:
    """The part of an hf:// URL that names repository and revision, as they stand there, or the bucket."""
    with clear_errors(url):
        parsed = parse_hf_uri(url)
    path = f"/{parsed.path_in_repo}" if parsed.path_in_repo else ""
    return url.rstrip("/").removesuffix(path)


@contextmanager
def clear_errors(place: str) -> Iterator[None]:
    """Whatever the Hub or its client refuses in the block, as one sentence about `place`."""
    shown = place if place.startswith("hf://") else f"hf://{place}"
    try:
        yield
    except (HfUriError, HFValidationError, NotImplementedError) as error:
        raise StorageError(
            f"{shown}: expected hf://datasets/OWNER/NAME[@REVISION]/PATH, hf://OWNER/NAME[@REVISION]/PATH (a"
            f" model), or hf://buckets/OWNER/NAME/PATH ({_first_line(error)})"
        ) from error
    except (OfflineModeIsEnabled, HTTPError, OSError) as error:
        raise _clear_error(error, shown) from error


def _clear_error(error: Exception, shown: str) -> Exception:
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
    if isinstance(cause, OfflineModeIsEnabled):
        return UnreachableError(f"{shown}: HF_HUB_OFFLINE is set, so the Hub is not asked: unset it")
    if isinstance(cause, RevisionNotFoundError):
        return FileNotFoundError(f"{shown}: the repository has no such revision")
    if isinstance(cause, GatedRepoError):
        return ForbiddenError(
            f"{shown}: the repository is gated: ask for access on its page, and {_TOKEN_HINT}"
        )
    if isinstance(cause, (RepositoryNotFoundError, BucketNotFoundError)):
        return ForbiddenError(
            f"{shown}: the Hub has no such repository or bucket, or hides it: {_TOKEN_HINT}"
        )
    if not isinstance(cause, HTTPError):
        return error  # one sentence already, or none of the Hub's
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else None
    if status == 404:
        return FileNotFoundError(f"{shown}: there is no such file")
    if status in (401, 403):
        return ForbiddenError(f"{shown}: the Hub refuses ({status}): check HF_TOKEN and what it may do")
    if status == 429:
        return UnreachableError(f"{shown}: the Hub has had too many requests: make the same call again later")
    if status is not None and status < 500:
        return StorageError(f"{shown}: the Hub refuses ({status}): {_first_line(error)}")
    return UnreachableError(
        f"{shown}: the Hub does not answer ({type(cause).__name__}{f' {status}' if status else ''}): check"
        " HF_ENDPOINT and the network, then make the same call again"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
