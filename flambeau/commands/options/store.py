"""The `--store` option of every command that has one.

Rule: a command that only reads a store creates none, so that a misspelt folder is an error.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.local.store_url import DEFAULT_STORE as DEFAULT_STORE
from model_store.errors import BadNameError, StoreError, StoreNotFoundError

if TYPE_CHECKING:
    from model_store.store import ModelStore

StoreUrl = Annotated[
    str,
    typer.Option("--store", metavar="URL", help="A folder, or s3://, gs:// or az://BUCKET/PREFIX."),
]

STORE_FAILURES: dict[type[Exception], int] = {
    StoreError: 1,
    StoreNotFoundError: 2,
    BadNameError: 2,
}
"""Exit codes of commands on a store: a missing store and an invalid name are usage errors."""


def existing_store(url: str) -> "ModelStore":
    """Opens an existing store.

    Raises:
        StoreNotFoundError: its folder does not exist.
        StorageError: it cannot be opened.
    """
    from model_store.store import ModelStore

    return ModelStore(url, when_missing="refuse")
