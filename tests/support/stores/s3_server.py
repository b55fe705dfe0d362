"""A local S3-protocol server for tests, on a loopback port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lineage.storage import clients as storage
from lineage.storage.folder import filesystem
from tests.support.stores.s3_process import s3_process


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve S3 and point the usual AWS_* variables at it, with empty buckets `plain` and `versioned`."""
    with s3_process() as there:
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_NO_SIGN_REQUEST", raising=False)
        storage._filesystem.cache_clear()
        try:
            store = filesystem("s3://plain")
            for bucket in ("plain", "versioned"):
                store.mkdir(bucket)
            store.call_s3(
                "put_bucket_versioning", Bucket="versioned", VersioningConfiguration={"Status": "Enabled"}
            )
            yield
        finally:
            storage._filesystem.cache_clear()
