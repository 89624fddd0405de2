"""The `--store` option, the same for every verb that has one."""

from typing import Annotated

import typer

DEFAULT_STORE = "./var/model_store"
StoreUrl = Annotated[
    str, typer.Option("--store", metavar="URL", help="A folder or s3://bucket/prefix.")
]
