"""The start of a server with TorchServe's API: its folder, its key file, and its first models.

In: settings of `config.properties` and of the command. Out: a folder that the server's processes
share, with the models registered whose archives can be; and what is to be said about it.

Source: TorchServe 0.12: what `load_models`, `models` and `model_snapshot` name, and that a model
which cannot be loaded does not stop the start.
"""

import asyncio
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from model_store.archives.model_config import ModelConfig
from model_store.archives.model_metrics import MAX_METRICS_BYTES, parse_model_metrics
from model_store.archives.server_properties import ServerProperties
from model_store.errors import StoreError
from model_store.store import ModelStore
from services.errors import ControlModeError, ServingError
from services.gateway.torchserve.archive_registry import ArchiveRegistry
from services.gateway.torchserve.archive_source import ArchiveSource
from services.gateway.torchserve.door_settings import DoorSettings, write_door
from services.gateway.torchserve.register_request import RegisterRequest
from services.gateway.torchserve.tokens import Tokens
from services.queueing.directory import Directory
from services.settings import ConfigError

ALL, NONE = "all", ("", "n/a", "none")
MAX_AT_START = 1_000
"""Models that one server registers at its start."""
_SUFFIXES = (".mar", ".model")
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.+)")


class FirstModel(NamedTuple):
    """A model to register at the start."""

    name: str
    """Its name; empty for the archive's."""
    url: str
    config: ModelConfig | None = None
    """Settings that go before those of the archive."""


@dataclass(slots=True)
class Start:
    """Result of the settings: the store, and the models that were registered."""

    store: Path
    """The server's own store."""
    registered: list[str] = field(default_factory=list)
    """Models and versions."""
    failed: list[str] = field(default_factory=list)
    """Archives that are not registered, with the reasons."""
    ignored: list[str] = field(default_factory=list)
    """What is not followed, with the reasons."""


def start(folder: Path, properties: ServerProperties, key_file: Path) -> Start:
    """Prepares the folder of a server; it blocks.

    Args:
        folder: an empty folder.
        properties: settings of the server.
        key_file: where the tokens go, if callers need any.

    Raises:
        ConfigError: the model store is no folder, or the key file cannot be written.
        StoreError: the store cannot be opened.
    """
    store = properties.model_store
    if store is not None and not Path(store).is_dir():
        raise ConfigError(f"model_store is '{store}', which is no folder; make it, or name another")
    found = Start(folder / "store", ignored=list(properties.ignored))
    properties = _with_model_metrics(_with_metrics_apart(properties, found))
    settings = DoorSettings(properties=properties)
    if not properties.disable_token_authorization:
        path = key_file.absolute()
        try:
            Tokens(path, properties.token_expiration_min * 60).create()
        except OSError as error:
            raise ConfigError(
                f"the key file {path} cannot be written: {error.strerror}; start in a folder that "
                "can be written, or pass --disable-token-auth"
            ) from error
        settings = settings.model_copy(update={"key_file": str(path)})
    write_door(folder, settings)
    registry = ArchiveRegistry(
        ModelStore(str(found.store)), folder, Directory(), _not_yet, properties
    )
    asyncio.run(_register_all(registry, ArchiveSource(folder, properties), properties, found))
    return found


def _with_metrics_apart(properties: ServerProperties, start: Start) -> ServerProperties:
    """Returns settings whose metrics have a port of their own, without TLS."""
    host, port, is_tls = properties.metrics_address
    if is_tls:
        start.ignored.append("'metrics_address': the port of the metrics speaks no TLS")
    if not properties.enable_metrics_api:
        start.ignored.append("'enable_metrics_api': the metrics are served in any case")
    others = (properties.inference_address, properties.management_address)
    if port and (host, port) in {(one[0], one[1]) for one in others}:
        start.ignored.append(
            f"'metrics_address': port {port} has another API; the metrics get a free port"
        )
        return replace(properties, metrics_address=(host, 0, False))
    return properties


def _with_model_metrics(properties: ServerProperties) -> ServerProperties:
    """Returns settings with the metrics of the file that `metrics_config` names.

    Raises:
        ConfigError: it cannot be read.
        ServerPropertiesError: it has another form.
    """
    path = properties.metrics_config
    if path is None:
        return properties
    try:
        if not Path(path).is_file():
            raise ConfigError(f"metrics_config is '{path}', which is no file; name another")
        with Path(path).open("rb") as file:
            data = file.read(MAX_METRICS_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"metrics_config is '{path}', which cannot be read: {error.strerror}; name another"
        ) from error
    return replace(properties, model_metrics=parse_model_metrics(data, path))


async def _register_all(
    registry: ArchiveRegistry, source: ArchiveSource, properties: ServerProperties, start: Start
) -> None:
    for name, url, config in first_models(properties):
        try:
            async with source.found(url) as archive:
                request = RegisterRequest(
                    archive=archive,
                    url=url,
                    model_name=name or None,
                    initial_workers=properties.default_workers_per_model or 1,
                    config=config,
                    at_start=True,
                )
                done = await asyncio.to_thread(registry.add, request)
        except (ServingError, StoreError, OSError) as error:
            start.failed.append(f"{url}: {error}")
        else:
            start.registered.append(f"{done.name} {done.version}")
            start.ignored += [f"{done.name} {done.version}: {one}" for one in done.ignored]


def first_models(properties: ServerProperties) -> list[FirstModel]:
    """Returns the models to register at the start: those of a snapshot, or of `load_models`.

    Raises:
        ConfigError: there are too many.
    """
    if properties.snapshot is not None:
        return [FirstModel(one.name, one.archive, one.config) for one in properties.snapshot]
    text = (properties.load_models or "").strip()
    if text.lower() in NONE:
        return []
    if text.lower() == ALL:
        store = properties.model_store
        inside = Path(store).iterdir() if store else ()
        found = [
            FirstModel("", name) for name in sorted(one.name for one in inside if _is_archive(one))
        ]
    else:
        found = []
        for piece in (one.strip() for one in text.split(",")):
            named = _NAMED.fullmatch(piece)
            if piece:
                pair = (named[1], named[2].strip()) if named else ("", piece)
                found.append(FirstModel(*pair))
    if len(found) > MAX_AT_START:
        raise ConfigError(
            f"load_models names {len(found):,} models, and at most {MAX_AT_START:,} are registered "
            "at the start; register the others by management"
        )
    return found


def _is_archive(path: Path) -> bool:
    is_named = path.is_dir() or path.name.endswith(_SUFFIXES)
    return is_named and not path.name.startswith(".")


async def _not_yet(act: str, model: str, dependents: bool) -> None:
    """Nothing is served yet."""
    raise ControlModeError("the server has not started")
