"""The configuration of an all-in-one server. Read once, at startup; there is no other source."""

import os
import platform
import sys
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from services.gateway.config import GatewaySettings
from services.inference.config import InferenceSettings
from services.registry_server.config import RegistrySettings

MOST_AUTOMATIC = 4
"""An edge takes some 40 µs for a small request and the model process 20, so that two edges keep it
busy (docs/adr/0058); requests with larger bodies leave room for more edges."""


def _may_share_memory() -> bool:
    """True on Linux where other processors see writes in their order (`shared_memory/ring.py`)."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


class ServerConfig(GatewaySettings, InferenceSettings, RegistrySettings):
    """All settings of `flambeau serve`: those of a gateway, a worker and a registry."""

    processes: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = 1
    """Processes that accept requests, beside one that runs the models and forms the batches of all;
    1 for a single process that does both. Raise it where one core does not take the requests of
    small models, or `auto` for one less than the cores of this process, up to 4."""

    torchserve: str = ""
    """Folder that `flambeau serve --torchserve` makes for TorchServe's API and its registered
    archives; set by that option alone."""

    @model_validator(mode="after")
    def _is_on_a_machine_for_several(self) -> Self:
        if self.processes not in (1, "auto") and not _may_share_memory():
            raise ValueError(
                f"processes is {self.processes}, and several need Linux on x86-64, whose order of "
                f"writes to memory they rely on; this is {sys.platform} on {platform.machine()}: "
                "serve with 1, or start several servers behind a load balancer"
            )
        return self

    @property
    def has_registry(self) -> bool:
        """True unless it is off, or the ports speak another server's API."""
        return self.registry != "off" and not self.torchserve

    @model_validator(mode="after")
    def _moves_aliases_by_the_registry(self) -> Self:
        if self.registry_two_person and self.torchserve:
            raise ValueError(
                "registry_two_person is set, and TorchServe's management moves aliases without the "
                "registry; serve without --torchserve, or without registry_two_person"
            )
        return self

    @property
    def edges(self) -> int:
        """Returns `processes`, or the number that `auto` means; at least 1."""
        if self.processes != "auto":
            return self.processes
        if not _may_share_memory():
            return 1
        return max(1, min(len(os.sched_getaffinity(0)) - 1, MOST_AUTOMATIC))

    def of_edge(self, ports: dict[str, int]) -> "ServerConfig":
        """Returns the settings of one of several edges: of most limits it has its share.

        Args:
            ports: the ports that all of them share.
        """
        edges = self.edges
        return self.model_copy(
            update={
                **ports,
                "max_connections": -(-self.max_connections // edges),
                "max_buffered_bytes": max(
                    self.buffer_limit_bytes // edges, 2 * self.max_request_bytes
                ),
                "payload_samples": {
                    pattern: rule.model_copy(update={"max_per_minute": rule.max_per_minute / edges})
                    for pattern, rule in self.payload_samples.items()
                },
            }
        )
