"""`flambeau up`: everything from nothing. Trains the recipe if the store is empty, then serves."""

from importlib.resources import files
from typing import Annotated

import typer

from flambeau.commands.failures import failing_with
from flambeau.commands.serve import parse_settings, run
from flambeau.commands.store_option import DEFAULT_STORE, StoreUrl
from flambeau.commands.train import train

FirstRecipe = Annotated[
    str | None,
    typer.Option(help="What to train if the store is empty; handwritten digits unless given."),
]


def up(
    store: StoreUrl = DEFAULT_STORE,
    recipe: FirstRecipe = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A server setting; may be repeated."),
    ] = None,
) -> None:
    """Train a first model if the store is empty, then serve it."""
    from services.settings import ConfigError, checked
    from services.standalone.config import ServerConfig

    settings = {"store": store, **parse_settings(set_ or [])}
    with failing_with({ConfigError: 2}):  # before a training, which takes longer
        checked(ServerConfig, settings)
    fill_if_empty(store, recipe)
    run(settings)


def fill_if_empty(store: str, recipe: str | None = None) -> None:
    """Trains and publishes a recipe, unless the store holds a model already."""
    from model_store.errors import StoreError
    from model_store.store import ModelStore

    with failing_with({StoreError: 1}):
        empty = not ModelStore(store).models()
    if empty:
        train(recipe or str(files("training") / "recipes" / "digits_cnn.yaml"), store=store)
