"""Opens a bucket by its URL: S3, Google Cloud Storage or Azure Blob Storage, through obstore.

Credentials and endpoint come from the environment of the provider's own tools, as obstore
documents. Each of the three creates a file only if it is absent, on which claims of versions,
generations of pointers and leases of rollouts rely.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from model_store.errors import StorageError
from model_store.storage.azure_credentials import missing_azure_credentials
from model_store.storage.gcs_credentials import missing_gcs_credentials
from model_store.storage.s3_credentials import missing_credentials

if TYPE_CHECKING:
    from obstore.store import ObjectStore

MISSING: dict[str, Callable[[], str]] = {
    "s3": missing_credentials,
    "s3a": missing_credentials,
    "gs": missing_gcs_credentials,
    "az": missing_azure_credentials,
}
"""By scheme, the function that returns why there are no credentials."""
URL_FORMS = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"


def open_bucket(url: str) -> "ObjectStore":
    """Opens a bucket, or a part of it.

    Raises:
        ValueError: the scheme is none of `MISSING`, there is no bucket name, or obstore refuses it.
        StorageError: there are no credentials.
    """
    scheme, _, place = url.partition("://")
    missing = MISSING.get(scheme)
    if missing is None:
        raise ValueError(f"no store can be opened at {scheme}://")
    if not place.partition("/")[0]:
        raise ValueError("it names no bucket")
    if reason := missing():
        raise StorageError(f"cannot open the store {url!r}: {reason}")
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        return from_url(url)
    except BaseError as error:
        raise ValueError(str(error).strip().split("\n", 1)[0]) from error
