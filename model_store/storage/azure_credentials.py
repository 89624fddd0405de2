"""Checks for credentials of Azure Blob Storage before the first request to a container.

obstore reads them from the environment: the account and its key or a SAS token, a service
principal, a workload identity (AKS), or the Azure CLI's; otherwise from the instance metadata
service, or the endpoint of a managed identity.

Source: https://docs.rs/object_store, `MicrosoftAzureBuilder::from_env`.
"""

import os

from model_store.storage.metadata_service import answers
from model_store.storage.s3_credentials import is_set

METADATA_URL = "http://169.254.169.254"
ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
"""Environment variables that name the storage account."""
SOURCES = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "AZURE_MSI_ENDPOINT",
    "AZURE_IDENTITY_ENDPOINT",
    "IDENTITY_ENDPOINT",
)
"""Environment variables each of which suffices as a source of credentials."""


def missing_azure_credentials() -> str:
    """Returns the reason why a container cannot be accessed; empty if there are credentials."""
    if not any(map(os.environ.get, ACCOUNTS)) and not is_set("AZURE_STORAGE_USE_EMULATOR"):
        return "no storage account is named: set AZURE_STORAGE_ACCOUNT_NAME"
    flags = ("AZURE_SKIP_SIGNATURE", "AZURE_USE_AZURE_CLI", "AZURE_STORAGE_USE_EMULATOR")
    if any(map(is_set, flags)) or any(map(os.environ.get, SOURCES)):
        return ""
    call = "GET /metadata/instance?api-version=2021-02-01"
    if answers(METADATA_URL, call, {"metadata": "true"}):
        return ""
    return (
        "there are no Azure credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, "
        "AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and AZURE_TENANT_ID, or AZURE_USE_AZURE_CLI=true; in "
        "AKS give the pod a workload identity (AZURE_FEDERATED_TOKEN_FILE); no instance metadata "
        "service answers here"
    )
