"""The argument MODEL of verbs that read a store, completed from the store that the line names."""

from typing import Annotated, Any

import typer

from flambeau.commands.store_option import DEFAULT_STORE


def models_that_begin(context: typer.Context, incomplete: str) -> list[str]:
    """Names of models in the store, for completion; none of a bucket, which takes too long."""
    from model_store.errors import StoreError
    from model_store.store import ModelStore

    url: Any = context.params.get("store") or DEFAULT_STORE
    if "://" in url and not url.startswith("file://"):
        return []
    try:
        return [name for name in ModelStore(url).models() if name.startswith(incomplete)]
    except StoreError:
        return []


ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Name of the model.", autocompletion=models_that_begin),
]
