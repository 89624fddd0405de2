"""`flambeau serve`: the whole server in one process; prints example requests when ready."""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flambeau.commands.import_model import BatchAxes, import_for_serving, read_batch_axes
from flambeau.commands.migration.serve_torchserve import serve_torchserve
from flambeau.commands.options.model import models_that_begin
from flambeau.commands.options.torchserve import (
    DisableTokenAuth,
    EnableModelApi,
    FirstModels,
    IgnoredOptions,
    ModelStore,
    Torchserve,
    TorchserveOptions,
    TsConfig,
)
from flambeau.commands.text.failures import failing_with
from flambeau.protocol.heavy_imports import heavy_imports
from model_store.host.install_advice import needing

if TYPE_CHECKING:
    from services.queueing.records import Lane

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]",
        help="Serve a model from its file at once, as `flambeau import` reads it, from a store "
        "that lasts as long as the server.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        help="Store URL: a folder, or s3://, gs:// or az://BUCKET/PREFIX.",
        show_default="./var/model_store",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        help="Serve only this model; may be repeated.",
        autocompletion=models_that_begin,
        show_default="all",
    ),
]
OneArtifact = Annotated[
    str | None,
    typer.Option(help="Serve this artifact of every version.", show_default="the fastest"),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
HttpPort = Annotated[
    int | None, typer.Option(help="REST port; 0 picks a free one.", show_default="8000")
]
GrpcPort = Annotated[
    int | None, typer.Option(help="gRPC port; 0 picks a free one.", show_default="8001")
]
MetricsPort = Annotated[
    int | None, typer.Option(help="Prometheus port; 0 picks a free one.", show_default="8002")
]
Processes = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="Processes that accept requests, beside one that runs the models.",
        show_default="1: one that does both",
    ),
]
Compat = Annotated[
    str | None,
    typer.Option(
        metavar="triton",
        help="Take the name and the words of this server, for clients that compare them.",
        show_default="none",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated."),
]


def serve(
    files: Files = None,
    store: Store = None,
    model: Models = None,
    artifact: OneArtifact = None,
    host: Host = None,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    metrics_port: MetricsPort = None,
    processes: Processes = None,
    compat: Compat = None,
    set_: Settings = None,
    batch_axis: BatchAxes = None,
    torchserve: Torchserve = False,
    ts_config: TsConfig = None,
    model_store: ModelStore = None,
    models: FirstModels = None,
    disable_token_auth: DisableTokenAuth = False,
    enable_model_api: EnableModelApi = False,
    start: IgnoredOptions = False,
) -> None:
    """Serve the models of a store, or a model in a file, over REST and gRPC."""
    named = {
        "store": store,
        "models": model,
        "artifact": artifact,
        "host": host,
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "processes": int(processes) if processes and processes.isdecimal() else processes,
        "compat": compat,
    }
    given = {name: value for name, value in named.items() if value is not None}
    settings = with_settings(given, set_)
    if torchserve and models:  # `--models a=a.mar b=b.mar`: the others are arguments
        files, models = None, [*models, *(files or [])]
    door = TorchserveOptions(
        ts_config, model_store, models, disable_token_auth, enable_model_api, start
    )
    if torchserve:
        if files or batch_axis:
            raise typer.BadParameter("it serves archives, and no FILE", param_hint="--torchserve")
        serve_torchserve(door, settings, run)
    elif named_options := door.given():
        raise typer.BadParameter("it needs --torchserve", param_hint=named_options[0])
    elif files:
        _serve_files(files, batch_axis, settings)
    elif batch_axis:
        raise typer.BadParameter(
            "it is for a FILE, and versions of a store have theirs", param_hint="--batch-axis"
        )
    else:
        run(settings)


def _serve_files(files: list[str], batch_axis: list[str] | None, settings: dict[str, Any]) -> None:
    """Serves models of files, from a store that lasts as long as the server."""
    if "store" in settings:
        raise typer.BadParameter(
            "a FILE is served from a store of its own; flambeau import puts it into "
            f"{settings['store']}",
            param_hint="--store",
        )
    batch_axes = read_batch_axes(batch_axis or [])
    with tempfile.TemporaryDirectory(prefix="flambeau-serve-") as own_store:
        import_for_serving(files, batch_axes, own_store)
        run({**settings, "store": own_store})


def run(settings: dict[str, Any], called: "Callable[[Lane], str] | None" = None) -> None:
    """Serves until SIGTERM or Ctrl-C.

    Args:
        settings: those of `ServerConfig`.
        called: see `print_listening`.
    """
    with needing("serve"), heavy_imports():
        from flambeau.commands.text.listening import print_listening
        from model_store.errors import StoreError
        from services.ports import PortError
        from services.process import end_past_held_threads
        from services.settings import ConfigError, checked
        from services.standalone.config import ServerConfig
        from services.standalone.server import serve as run_server

    with failing_with({ConfigError: 2, StoreError: 1, PortError: 1}):
        run_server(checked(ServerConfig, settings), partial(print_listening, called=called))
    end_past_held_threads()


def with_settings(options: Mapping[str, Any], pairs: list[str] | None) -> dict[str, Any]:
    """Returns the values of options, and of the `NAME=VALUE` pairs of `--set`.

    Raises:
        BadParameter: a pair is malformed, or names what an option gives.
    """
    settings = parse_settings(pairs or [])
    for name in options.keys() & settings.keys():
        told = f"'{name}' has an option, which says {options[name]}; leave out one of the two"
        raise typer.BadParameter(told, param_hint="--set")
    return {**options, **settings}


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Parses `NAME=VALUE` pairs, with values in YAML: `threads=2`, `models=[a, b]`."""
    from model_store.yaml_text import YamlError, read_yaml

    for pair in pairs:
        if "=" not in pair:
            raise typer.BadParameter(f"'{pair}' is not NAME=VALUE", param_hint="--set")
    settings: dict[str, Any] = {}
    for name, value in (pair.split("=", 1) for pair in pairs):
        try:
            settings[name.strip()] = read_yaml(value)
        except YamlError as error:
            told = f"'{name}={value}' has a value that is not YAML: {error}"
            raise typer.BadParameter(told, param_hint="--set") from error
    return settings
