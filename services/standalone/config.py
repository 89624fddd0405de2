"""The configuration of an all-in-one server. Read once, at startup; there is no other source."""

import os
import platform
import re
import sys
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from services.access.grants import parse_aliases
from services.gateway.config import GatewaySettings
from services.inference.config import InferenceSettings
from services.registry.registry_access import RegistryMode

MAX_WEBHOOKS = 8
"""URLs that are told of events of the registry."""
MAX_TWO_PERSON = 64
"""Patterns of aliases whose moves need two persons; each move is compared with all."""
MOST_AUTOMATIC = 4
"""An edge takes some 40 µs for a small request and the model process 20, so that two edges keep it
busy (docs/adr/0058); requests with larger bodies leave room for more edges."""


def _may_share_memory() -> bool:
    """True on Linux where other processors see writes in their order (`shared_memory/ring.py`)."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


class ServerConfig(GatewaySettings, InferenceSettings):
    """All settings of `flambeau serve`: those of a gateway and of a worker."""

    processes: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = 1
    """Processes that accept requests, beside one that runs the models and forms the batches of all;
    1 for a single process that does both. Raise it where one core does not take the requests of
    small models, or `auto` for one less than the cores of this process, up to 4."""

    registry: RegistryMode = "granted"
    """Calls of the registry (`/v1/registry`): with `granted`, callers need the scopes `read`,
    `push`, `promote` and `delete`; without credentials, versions are only read, from this machine.
    Set it to `open` to let callers on this machine write, too, without credentials; `off` for no
    registry."""
    registry_two_person: Annotated[tuple[str, ...], Field(max_length=MAX_TWO_PERSON)] = ()
    """Aliases whose moves through the registry need two callers, as `[digits*@production]`: one
    asks, another one approves. Set it where nobody alone may change what production answers;
    patterns are those of grants. It needs credentials."""
    registry_two_person_rollback: bool = False
    """True if a rollback of such an alias to an older version needs two callers, too. Set it where
    a wrong rollback is worse than a late one."""
    upload_folder: str = ""
    """Folder where the files of uploads are collected before their version is published; set it for
    a store in a bucket, which takes no uploads otherwise, or for a larger disk. Empty for a folder
    within the store, from which files are published without a copy."""
    registry_webhooks: Annotated[tuple[str, ...], Field(max_length=MAX_WEBHOOKS)] = ()
    """URLs that are called when a version is pushed, promoted, rolled back, deleted or annotated,
    as `[https://ci.example.org/models]`; each call is signed. Empty for none."""
    webhook_secret_file: str = ""
    """File with the secret that signs webhooks; required for any."""

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

    @field_validator("registry_webhooks")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not re.fullmatch(r"https?://[!-~]{1,2000}", url):
                raise ValueError(f"{url[:80]!r} is no URL; give one as https://ci.example.org/hook")
        return value

    @field_validator("registry_two_person")
    @classmethod
    def _are_aliases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_aliases(value)
        return value

    @model_validator(mode="after")
    def _knows_two_persons(self) -> Self:
        if self.registry_two_person and self.torchserve:
            raise ValueError(
                "registry_two_person is set, and TorchServe's management moves aliases without the "
                "registry; serve without --torchserve, or without registry_two_person"
            )
        if self.registry_two_person and not self.asks_for_credentials:
            raise ValueError(
                "registry_two_person is set, and this server asks for no credentials, by which it "
                "would know two persons; set api_keys_file or jwt_keys (docs/guides/security.md)"
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
