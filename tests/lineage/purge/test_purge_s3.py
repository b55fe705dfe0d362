"""Purge on an object store: no version of an object keeps a purged text."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lineage.purge.plan import PurgeError
from lineage.storage import objects
from lineage.storage.folder import Folder
from tests.support.outputs.byte_search import of_folder
from tests.support.outputs.purging import assert_gone, assert_whole, by_doc, purge
from tests.support.outputs.small_out.output import make_small_out
from tests.support.stores.s3_server import s3_server


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with s3_server(monkeypatch):
        yield


def every_version(out: Folder) -> Iterator[bytes]:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    bucket, _, prefix = out.url.removeprefix("s3://").partition("/")
    for version in objects.versions(out, ""):
        if not version.is_marker:
            key = f"{prefix}/{version.name}"
            yield client.get_object(Bucket=bucket, Key=key, VersionId=version.version_id)["Body"].read()


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["plain", "versioned"])
def test_in_s3_nothing_is_left_in_any_version(served: None, bucket: str) -> None:
    small = make_small_out(f"s3://{bucket}/runs/out")
    out = small.folder
    assert_whole(out)
    out.publish("work/units/1/tokens.bin", small.tokenizer.encode(small.named["original"].text).tobytes())
    out.remove("work/units/1/tokens.bin")
    out.publish("report.html", out.read("report.html"))
    victims = [small.named[name] for name in ("original", "exact", "near")]
    if bucket == "versioned":
        with pytest.raises(AssertionError):
            assert_gone(small, every_version(out), *victims)
    purge(out, by_doc(small.named["exact"]))
    assert_whole(out)
    assert_gone(small, of_folder(out), *victims)
    if bucket == "versioned":
        assert_gone(small, every_version(out), *victims)


@pytest.mark.slow
def test_a_bucket_that_keeps_what_is_deleted_is_refused_before_the_purge_begins(
    served: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make_small_out("s3://versioned/runs/out")
    out = small.folder
    real = objects._call

    def locked(url: str, operation: str, **arguments: object) -> object:
        if operation == "delete_object" and "VersionId" in arguments:
            raise PermissionError("Access Denied because object protected by object lock")
        return real(url, operation, **arguments)

    monkeypatch.setattr(objects, "_call", locked)
    with pytest.raises(PurgeError, match="does not begin"):
        purge(out, by_doc(small.named["original"]))
    monkeypatch.undo()
