"""The clients of stores whose packages are extras: Google Cloud Storage (gs://, gcsfs), Azure Blob Storage (az://,
adlfs) and the Hugging Face Hub (hf://, huggingface_hub)."""

from __future__ import annotations

from typing import Any

from lineage.recipe import RecipeError
from lineage.storage.errors import StorageError


def google_store() -> Any:
    """The file system of gs://. RecipeError where gcsfs is not installed."""
    try:
        # Not gcsfs.GCSFileSystem, which asks another service, by gRPC, of what kind each bucket is.
        from gcsfs.core import GCSFileSystem
    except ImportError as error:
        raise _missing("gs", "gcsfs") from error
    return GCSFileSystem(use_listings_cache=False, skip_instance_cache=True)


def azure_store() -> Any:
    """The file system of az://. RecipeError where adlfs is not installed, StorageError where no account is
    named."""
    try:
        from adlfs import AzureBlobFileSystem
    except ImportError as error:
        raise _missing("az", "adlfs") from error
    try:
        return AzureBlobFileSystem(use_listings_cache=False, skip_instance_cache=True)
    except ValueError as error:
        raise StorageError(
            f"az://: no storage account ({error}): set AZURE_STORAGE_CONNECTION_STRING, or"
            " AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
        ) from error


def hub() -> Any:
    """The file system of hf://. RecipeError where huggingface_hub is not installed."""
    try:
        from lineage.storage.hub_client import HubClient
    except ImportError as error:
        raise _missing("hf", "huggingface_hub") from error
    return HubClient()


def _missing(scheme: str, package: str) -> RecipeError:
    return RecipeError(
        f"{scheme}:// needs the package {package}, which is not installed: in Sluice's checkout,"
        f" pip install '.[{scheme}]'"
    )
