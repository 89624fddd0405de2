"""`flambeau demo`: train if the store is empty, serve, classify, compare, stop."""

import typer

from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.text.failures import failing_with
from flambeau.commands.up import EXTRAS, FirstRecipe, fill_if_empty
from model_store.host.install_advice import needing


def demo(
    store: StoreUrl = DEFAULT_STORE,
    recipe: FirstRecipe = None,
) -> None:
    """Train if the store is empty, serve, classify the test images, check, and exit."""
    from flambeau.demonstration import MODEL, DemoError, check_packages_of, compare_protocols
    from flambeau.errors import ClientError
    from flambeau.server_process import ServerProcessError, server_process
    from model_store.errors import StoreError
    from training.errors import TrainingError

    with needing(EXTRAS):
        from services.settings import ConfigError, checked
        from services.standalone.config import ServerConfig

    with failing_with({ConfigError: 2}):  # before the training, which takes longer
        checked(ServerConfig, {"store": store})
    fill_if_empty(store, recipe)
    arguments = ["--store", store, "--model", MODEL, "--set", "log_level=warning"]
    failures = (DemoError, StoreError, ServerProcessError, ClientError, TrainingError)
    with failing_with(dict.fromkeys(failures, 1)):
        check_packages_of(store)
        with server_process(arguments) as server:
            last_line = compare_protocols(store, server)
        typer.echo(last_line)
