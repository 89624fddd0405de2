"""The TorchServe door of an all-in-one server: opened only where the settings name its folder."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from model_store.store import ModelStore
from services.gateway.edges.torchserve.door import TorchServeDoor
from services.gateway.torchserve.door_settings import addresses, read_door, write_door
from services.queueing.directory import Directory
from services.standalone.config import ServerConfig


def open_door(
    config: ServerConfig,
    store: ModelStore,
    directory: Directory,
    act: Callable[[str, str, bool], Awaitable[None]],
) -> TorchServeDoor:
    """Opens the door of a process.

    Args:
        config: settings of the server, which name the door's folder.
        store: the model store.
        directory: versions that are served.
        act: has the model process look at a model.

    Raises:
        ConfigError: the folder has no settings, or they would open management to other machines.
    """
    folder = Path(config.torchserve)
    settings = read_door(folder)
    return TorchServeDoor(
        settings,
        folder,
        store,
        directory,
        act,
        open_to_strangers=config.open_to_strangers,
    )


def addresses_of(config: ServerConfig) -> dict[str, tuple[str, int]]:
    """Returns the addresses of a door, by setting, and that of its metrics as `metrics_port`.

    Raises:
        ConfigError: as `open_door`.
    """
    properties = read_door(Path(config.torchserve)).properties
    return {**addresses(properties), "metrics_port": properties.metrics_address[:2]}


def fix_ports(config: ServerConfig, ports: dict[str, int]) -> None:
    """Has all processes use the ports that were reserved."""
    folder = Path(config.torchserve)
    write_door(folder, read_door(folder).with_ports(ports))
