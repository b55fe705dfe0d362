"""Which client reads and writes the store that a URL names, with the settings of the environment."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lineage.recipe import RecipeError
from lineage.secrets import redact_log

REMOTE_SCHEMES = ("s3", "gs", "az", "hf", "https", "http")
SECRET_PREFIX = "SLUICE_SECRET_"
"""Of the variables that a recipe may name in a URL. No others: a recipe of another person could send any."""

for _name in ("fsspec", "fsspec.http", "fsspec.generic"):
    logging.getLogger(_name).addFilter(redact_log)


def is_remote(url: str) -> bool:
    """Whether `url` lies in an object store or on a web server; RecipeError for a scheme that we do not
    read."""
    scheme, found, _ = url.partition("://")
    if found and scheme not in (*REMOTE_SCHEMES, "file"):
        raise RecipeError(
            f"{url!r}: expected a path, file://, s3://, gs://, az://, hf:// or https://, not {scheme}://"
        )
    return found != "" and scheme in REMOTE_SCHEMES


def object_store_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The AWS_*, AZURE_STORAGE_* and SLUICE_SECRET_* variables of an environment, HF_TOKEN and HF_ENDPOINT, by
    name: the settings for object stores, and the credentials for web servers."""
    prefixes, names = ("AWS_", "AZURE_STORAGE_", SECRET_PREFIX), ("HF_TOKEN", "HF_ENDPOINT")
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(prefixes) or name in names
    }


def filesystem(url: str) -> Any:
    """The fsspec file system that `url` belongs to. S3 takes its endpoint, region and keys from the usual
    AWS_* variables and goes anonymous where there are no keys (or with AWS_NO_SIGN_REQUEST=1). The role of an
    EC2 instance is asked for with AWS_EC2_METADATA_DISABLED=false. gs:// and az:// take what gcsfs and adlfs
    find in the environment, hf:// takes HF_TOKEN and HF_ENDPOINT; RecipeError where that package is not
    installed."""
    scheme = urlsplit(url).scheme if is_remote(url) else "file"
    if scheme not in ("s3", "gs", "az", "hf"):
        return _filesystem(scheme, os.getpid(), False, ())
    # A process may come to other settings (a worker that serves one job after another): they get a client of
    # their own.
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

        return S3Client(
            anon=anonymous, use_listings_cache=False, skip_instance_cache=True, default_block_size=16 << 20
        )
    if scheme in ("gs", "az", "hf"):
        from lineage.storage.extra_clients import azure_store, google_store, hub

        return {"gs": google_store, "az": azure_store, "hf": hub}[scheme]()
    import fsspec  # most commands open no file by it

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
