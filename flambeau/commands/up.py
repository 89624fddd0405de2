"""`flambeau up`: trains a first model if the store is empty, then serves."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from typing import Annotated

import typer

from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.serve import run, with_settings
from flambeau.commands.text.failures import failing_with
from model_store.host.install_advice import needing
from model_store.host.own_process import own_command

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXTRAS = "serve,train"
FirstRecipe = Annotated[
    str | None,
    typer.Option(help="Recipe to train if the store is empty; handwritten digits unless given."),
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
    with needing(EXTRAS):
        from services.inference.start_checks import check_machine
        from services.ports import PortError, check_free
        from services.settings import ConfigError, checked
        from services.standalone.config import ServerConfig

    settings = with_settings({"store": store}, set_)
    with failing_with({ConfigError: 2, PortError: 1}):  # before the training, which takes longer
        config = checked(ServerConfig, settings)
        check_machine(config)
        check_free(config.host, config.ports())
    fill_if_empty(store, recipe)
    run(settings)


def fill_if_empty(store: str, recipe: str | None = None) -> None:
    """Trains and publishes a recipe, unless the store already has a model.

    An interrupted training resumes from its last checkpoint. It runs in its own process, because it
    imports torch and starts helpers, none of which should stay with the server.

    Raises:
        typer.Exit: it failed, with its exit code; or 128 + the number of the signal that ended it;
            or the store has another layout.
    """
    from model_store.errors import ForeignLayoutError, StoreError
    from model_store.store import ModelStore

    with failing_with({StoreError: 1}):
        opened = ModelStore(store)
        empty = not opened.models()
        if empty and (fault := opened.foreign_layout()):
            raise ForeignLayoutError(f"nothing is trained into this store: {fault}")
    if not empty:
        return
    first = recipe or str(files("training") / "recipes" / "digits_cnn.yaml")
    typer.echo(
        f"the store {opened.url} is empty: training {first} first; an interrupted training resumes "
        "from its last checkpoint"
    )
    sys.stdout.flush()  # the training writes to the same output
    command = own_command("flambeau", "train", first, "--store", store, "--resume")
    if code := _run_to_its_end(command):
        raise typer.Exit(code)


def _run_to_its_end(command: Sequence[str]) -> int:
    """Runs a command to its end, and interrupts it on a stop signal. Returns the exit code.

    The command has its own session, so that Ctrl-C does not reach it a second time.
    """
    asked: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def interrupt(number: int, _: object) -> None:
        asked.append(number)
        if process is not None:
            process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
        if asked:  # a signal before the process existed
            process.send_signal(signal.SIGINT)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + asked[0] if asked else code
