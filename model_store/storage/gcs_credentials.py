"""Checks for credentials of Google Cloud Storage before the first request to a bucket.

obstore reads them from the environment: the key of a service account, or a file of application
default credentials of `gcloud auth application-default login` (`authorized_user`); otherwise from
the metadata server of Compute Engine and GKE. It refuses a file of workload identity federation
(`external_account`): `unknown variant`, of obstore 0.12 with object_store 0.14.

Source: https://docs.rs/object_store, `GoogleCloudStorageBuilder::from_env`.
"""

import os
from pathlib import Path

from model_store.storage.metadata_service import answers
from model_store.storage.s3_credentials import is_set

METADATA_HOST = "metadata.google.internal"
SOURCES = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
)
"""Environment variables each of which suffices as a source of credentials."""
DEFAULT_FILE = ".config/gcloud/application_default_credentials.json"
"""File of application default credentials, in the home folder."""


def missing_gcs_credentials() -> str:
    """Returns the reason why a bucket of GCS cannot be accessed; empty if there are credentials."""
    if is_set("GOOGLE_SKIP_SIGNATURE") or any(map(os.environ.get, SOURCES)):
        return ""
    home = os.environ.get("HOME")
    if home and Path(home, DEFAULT_FILE).is_file():
        return ""
    host = os.environ.get("GCE_METADATA_HOST") or METADATA_HOST
    if answers(f"http://{host}", "GET /computeMetadata/v1/", {"metadata-flavor": "Google"}):
        return ""
    return (
        "there are no Google credentials: set GOOGLE_APPLICATION_CREDENTIALS or "
        "GOOGLE_SERVICE_ACCOUNT to the file of a service account, or GOOGLE_SKIP_SIGNATURE=true "
        "for a public bucket; in GKE give the pod a workload identity; no metadata server of "
        "Compute Engine answers here"
    )
