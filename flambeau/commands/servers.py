"""`flambeau gateway`, `inference`, `registry` and `trainer`: the processes of a split server.

They run `python -m services.gateway` and so on. Their options are the fields of a configuration
(`services/settings.py`), which a typer command would have to import for its help, so all arguments
are passed on unchanged.
"""

from importlib import import_module

import typer

PASSED_ON = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],  # the process has its own help
}
"""Context of a command whose arguments another parser reads."""


def gateway(context: typer.Context) -> None:
    """Run a gateway: accepts requests over REST and gRPC, and forwards them to workers."""
    _run("gateway", context)


def inference(context: typer.Context) -> None:
    """Run a worker: runs models on this machine's device, for gateways."""
    _run("inference", context)


def registry(context: typer.Context) -> None:
    """Run a registry: shows the versions of the model store, takes new ones and moves aliases."""
    _run("registry_server", context)


def trainer(context: typer.Context) -> None:
    """Run the training service: accepts training jobs over REST and gRPC, and runs them."""
    _run("trainer", context)


def _run(name: str, context: typer.Context) -> None:
    code = import_module(f"services.{name}.__main__").main(context.args)
    raise typer.Exit(code)
