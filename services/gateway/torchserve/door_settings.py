"""What the processes of a server with TorchServe's API share: one document in the server's folder.

The command writes it before the server starts; each process reads it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flambeau.protocol.strict import StrictModel
from model_store.archives.server_properties import Address, ServerProperties
from services.settings import ConfigError

_FILE = "torchserve.json"


class DoorSettings(StrictModel):
    """The settings of a door."""

    properties: ServerProperties
    """As TorchServe has them."""
    key_file: str = ""
    """Path of the file with the tokens; empty if callers need none."""

    def with_ports(self, ports: dict[str, int]) -> "DoorSettings":
        """Returns the settings with other port numbers.

        Args:
            ports: port numbers by setting, as `addresses` names them.
        """
        changed: dict[str, Any] = {}
        for name, (host, _) in addresses(self.properties).items():
            present = getattr(self.properties, name)
            is_number = isinstance(present, int)
            changed[name] = ports[name] if is_number else (host, ports[name], present[2])
        return self.model_copy(update={"properties": replace(self.properties, **changed)})


def addresses(properties: ServerProperties) -> dict[str, tuple[str, int]]:
    """Returns the addresses that are listened on, by setting; two settings may share one.

    The metrics have a port of their own, and are not among them.
    """
    found = {
        "inference_address": _plain(properties.inference_address),
        "grpc_inference_port": (properties.grpc_inference_address, properties.grpc_inference_port),
        "grpc_management_port": (
            properties.grpc_management_address, properties.grpc_management_port,
        ),
    }  # fmt: skip
    management = _plain(properties.management_address)
    if management != found["inference_address"] or not management[1]:
        found["management_address"] = management
    return found


def _plain(address: Address) -> tuple[str, int]:
    return address[0], address[1]


def write_door(folder: Path, settings: DoorSettings) -> None:
    """Writes the settings into a folder."""
    (folder / _FILE).write_bytes(settings.model_dump_json().encode())


def read_door(folder: Path) -> DoorSettings:
    """Reads the settings in a folder.

    Raises:
        ConfigError: there are none, or they were changed by hand.
    """
    try:
        return DoorSettings.model_validate_json((folder / _FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"torchserve is '{folder}', which has no settings of TorchServe's API ({error}); start "
            "the server with flambeau serve --torchserve"
        ) from error
