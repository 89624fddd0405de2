"""`flambeau up`: everything from nothing. Trains the recipe if the store is empty, then serves."""

from typing import Annotated

import typer

from flambeau.commands.serve import parse_settings, run
from flambeau.commands.store_option import DEFAULT_STORE, StoreUrl
from flambeau.commands.train import train

DEFAULT_RECIPE = "training/recipes/digits_cnn.yaml"


def up(
    store: StoreUrl = DEFAULT_STORE,
    recipe: Annotated[
        str, typer.Option(help="What to train if the store is empty.")
    ] = DEFAULT_RECIPE,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A server setting; may be repeated."),
    ] = None,
) -> None:
    """Train a first model if the store is empty, then serve it."""
    fill_if_empty(store, recipe)
    run({"store": store, **parse_settings(set_ or [])})


def fill_if_empty(store: str, recipe: str) -> None:
    """Trains and publishes the recipe unless the store holds a model already."""
    from flambeau.commands.failures import failing_with
    from model_store.errors import StoreError
    from model_store.store import ModelStore

    with failing_with({StoreError: 1}):
        empty = not ModelStore(store).models()
    if empty:
        train(recipe, store=store)
