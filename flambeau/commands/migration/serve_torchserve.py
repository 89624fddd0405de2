"""`flambeau serve --torchserve`: a server with TorchServe's API, by TorchServe's configuration."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flambeau.commands.options.torchserve import TorchserveOptions
from flambeau.commands.text.failures import failing_with
from model_store.host.install_advice import needing

if TYPE_CHECKING:
    from model_store.archives.server_properties import ServerProperties
    from services.gateway.torchserve.start import Start
    from services.queueing.records import Lane

CONFIG_VARIABLE, CONFIG_FILE = "TS_CONFIG_FILE", "config.properties"
KEY_FILE = "key_file.json"
NO_LIMIT_S = 86_400.0
"""TorchServe limits the time of batches (`default_response_timeout`), and not that of requests."""
_PORTS = ("grpc_port", "http_port", "metrics_port")
_NOT_WITH = ("artifact", "compat", "host", "models", "store", *_PORTS)
"""Settings that TorchServe's configuration has in other words, or that mean nothing here."""
_OPTIONS = {"models": "--model"}
"""Options whose settings have other names."""


def serve_torchserve(
    options: TorchserveOptions, settings: Mapping[str, Any], run: Callable[..., None]
) -> None:
    """Registers the first models, and serves until SIGTERM or Ctrl-C.

    Args:
        options: as given.
        settings: further settings of the server.
        run: runs a server with its settings, and `called` of `print_listening`.
    """
    if wrong := [name for name in _NOT_WITH if name in settings]:
        raise typer.BadParameter(
            "it has no meaning with --torchserve; TorchServe's configuration says what is served, "
            "and where",
            param_hint=_OPTIONS.get(wrong[0]) or f"--{wrong[0].replace('_', '-')}",
        )
    with needing("serve"):
        from model_store.errors import StoreError
        from services.gateway.torchserve.start import start
        from services.settings import ConfigError

    with (
        tempfile.TemporaryDirectory(prefix="flambeau-torchserve-") as folder,
        failing_with({ConfigError: 2, StoreError: 2}),
    ):
        if options.start:
            print("--start, --foreground and --no-config-snapshots have no meaning here")
        properties = read_properties(options, os.environ)
        started = start(Path(folder), properties, Path(KEY_FILE))
        print("\n".join(_lines(started, properties)), flush=True)
        found = {**settings_of(properties, started), **settings, "torchserve": folder}
        run(found, called=_called_in(Path(folder)))


def read_properties(
    options: TorchserveOptions, environment: Mapping[str, str]
) -> "ServerProperties":
    """Returns the settings of the configuration, with those of the options in their place.

    Raises:
        ServerPropertiesError: a value cannot be read.
        ConfigError: the file cannot be read.
    """
    from model_store.archives.server_properties import parse_server_properties
    from services.settings import ConfigError

    path = options.config or Path(environment.get(CONFIG_VARIABLE, CONFIG_FILE))
    is_named = options.config is not None or CONFIG_VARIABLE in environment
    try:
        if is_named and path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no regular file; name the file of the configuration")
        data = path.read_bytes() if is_named or path.is_file() else b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name another file") from error
    found = parse_server_properties(data, str(path), environment)
    given: dict[str, Any] = {}
    if options.model_store is not None:
        given["model_store"] = str(options.model_store)
    if options.models:
        given["load_models"] = ",".join(options.models)
    if options.disable_token_auth:
        given["disable_token_authorization"] = True
    if options.enable_model_api:
        given["enable_model_api"] = True
    return replace(found, **given)


def settings_of(properties: "ServerProperties", started: "Start") -> dict[str, Any]:
    """Returns the settings of a server that follows those of TorchServe."""
    found = {
        "store": str(started.store),
        "newest_versions": 0,
        "host": properties.inference_address[0],
        "max_request_bytes": max(1024, properties.max_request_size),
        "max_queue_depth": properties.job_queue_size,
        "request_timeout_s": NO_LIMIT_S,
    }
    if properties.certificate_file and properties.private_key_file:
        found["tls_certificate_file"] = properties.certificate_file
        found["tls_key_file"] = properties.private_key_file
    return found


def _called_in(folder: Path) -> "Callable[[Lane], str]":
    """Returns a function that names a lane as the registrations in a folder do."""
    from model_store.archives.registration_file import RegistrationFile

    models = RegistrationFile(folder).latest().models

    def called(lane: "Lane") -> str:
        versions = models[lane.model].versions if lane.model in models else {}
        numbers = {one.number: version for version, one in versions.items()}
        return f"{lane.model} {numbers.get(lane.version, lane.version)}"

    return called


def _lines(started: "Start", properties: "ServerProperties") -> list[str]:
    from model_store.archives.server_properties import ServerProperties as Usual

    lines = [f"registered {one}" for one in started.registered]
    lines += [f"NOT registered {one}" for one in started.failed]
    lines += [f"not followed: {one}" for one in started.ignored]
    if properties.enable_model_api and properties.allowed_urls == Usual().allowed_urls:
        lines.append("archives may come from any URL; set allowed_urls in the configuration")
    if properties.disable_token_authorization:
        lines.append("callers need no token")
    else:
        lines.append(f"tokens for callers are in {Path(KEY_FILE).absolute()}")
    return lines
