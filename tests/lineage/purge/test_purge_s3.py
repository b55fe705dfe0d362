"""Purge on an object store: no version of an object keeps a purged text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from lineage.purge.erase import erase_old_versions, refuse_if_bytes_would_stay
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
            key = f"{prefix}/{version.name}".lstrip("/")
            yield client.get_object(Bucket=bucket, Key=key, VersionId=version.version_id)["Body"].read()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["plain/runs/out", "versioned/runs/out", "plain", "versioned"])
def test_in_s3_nothing_is_left_in_any_version(served: None, place: str) -> None:
    small = make_small_out(f"s3://{place}")
    out, bucket = small.folder, place.partition("/")[0]
    assert_whole(out)
    out.publish("work/units/1/tokens.bin", small.tokenizer.encode(small.named["original"].text).tobytes())
    out.remove("work/units/1/tokens.bin")
    out.publish("report.html", out.read("report.html"))
    victims = [small.named[name] for name in ("original", "exact", "near")]
    if bucket == "versioned":
        assert next(every_version(out), None) is not None
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


@pytest.mark.parametrize("url", ["s3://versioned", "s3://versioned/runs/out"])
def test_old_versions_are_listed_and_deleted_wherever_in_a_bucket_an_output_lies(
    served: None, url: str
) -> None:
    out = Folder(url)
    for content in (b"old", b"new"):
        out.publish("shards/web/00000.bin", content)
    refuse_if_bytes_would_stay(out)
    erase_old_versions(out)
    assert [(version.name, version.is_latest) for version in objects.versions(out, "")] == [
        ("shards/web/00000.bin", True)
    ]
    assert out.read("shards/web/00000.bin") == b"new"


def test_a_bucket_that_does_not_list_the_version_of_the_probe_is_refused(
    served: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "versions", lambda _out, _under: iter(()))
    with pytest.raises(PurgeError, match=r"does not list them: .* does not begin"):
        refuse_if_bytes_would_stay(Folder("s3://versioned/runs/out"))


@pytest.mark.parametrize("url", ["s3://plain", "s3://plain/runs/out"])
def test_every_upload_that_never_ended_is_aborted_however_many_pages_list_them(
    served: None, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    out, real = Folder(url), objects._call
    start = {"Bucket": "plain", "Key": out.at("shards/web/00000.bin").removeprefix("s3://plain/")}
    for _ in range(3):
        real(url, "create_multipart_upload", **start)
    other = real(url, "create_multipart_upload", **start | {"Key": "elsewhere"})["UploadId"]

    def one_a_page(url: str, operation: str, **arguments: str) -> dict[str, Any]:
        if operation != "list_multipart_uploads":
            return dict(real(url, operation, **arguments))
        after = (arguments.pop("KeyMarker", ""), arguments.pop("UploadIdMarker", ""))
        uploads = real(url, operation, **arguments).get("Uploads", [])
        later = sorted(
            (each["Key"], each["UploadId"]) for each in uploads if (each["Key"], each["UploadId"]) > after
        )
        page = [{"Key": name, "UploadId": upload} for name, upload in later[:1]]
        markers = {f"Next{kind}Marker": page[0][kind] for kind in ("Key", "UploadId")} if page else {}
        return {"Uploads": page, "IsTruncated": len(later) > 1, **markers}

    monkeypatch.setattr(objects, "_call", one_a_page)
    erase_old_versions(out)
    left = real(url, "list_multipart_uploads", Bucket="plain").get("Uploads", [])
    assert [upload["UploadId"] for upload in left] == [other]
