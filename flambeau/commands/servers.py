"""`flambeau gateway`, `inference` and `trainer`: each process of the split form by its name.

They are `python -m services.gateway` and so on. Their options are the fields of a configuration
(`services/settings.py`), which a typer command would have to import to be listed, so all arguments
are passed on as they are.
"""

from importlib import import_module

import typer

PASSED_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],  # the process has a help of its own
}
"""The context of a verb whose arguments are another parser's."""


def gateway(context: typer.Context) -> None:
    """Run a gateway: takes requests over REST and gRPC, and has workers answer them."""
    _run("gateway", context)


def inference(context: typer.Context) -> None:
    """Run a worker: models on this machine's device, for gateways."""
    _run("inference", context)


def trainer(context: typer.Context) -> None:
    """Run the training service: takes training jobs over REST and gRPC, and runs them."""
    _run("trainer", context)


def _run(name: str, context: typer.Context) -> None:
    code = import_module(f"services.{name}.__main__").main(context.args)
    raise typer.Exit(code)
