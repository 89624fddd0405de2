"""The `--store` option, the same for every verb that has one.

Rule kept here: a verb that only reads a store makes none, so a misspelt folder is an error.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from model_store.errors import StoreError, StoreNotFoundError

if TYPE_CHECKING:
    from model_store.store import ModelStore

DEFAULT_STORE = "./var/model_store"
StoreUrl = Annotated[
    str, typer.Option("--store", metavar="URL", help="A folder or s3://bucket/prefix.")
]

STORE_FAILURES: dict[type[Exception], int] = {StoreError: 1, StoreNotFoundError: 2}
"""Exit codes of verbs that read a store: one that is not there is a fault of the command line."""


def existing_store(url: str) -> "ModelStore":
    """Opens a store that is there.

    Raises:
        StoreNotFoundError: its folder does not exist.
        StorageError: it cannot be opened.
    """
    from model_store.store import ModelStore

    return ModelStore(url, must_exist=True)
