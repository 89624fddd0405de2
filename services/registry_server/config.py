"""The settings of a registry, and the configuration of the process that is nothing else.

Read once, at start-up; there is no other source.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from services.access.config import AccessSettings
from services.access.grants import parse_aliases
from services.gateway.config import GatewaySettings, PortSettings
from services.inference.trust import TrustSettings
from services.registry.registry_access import RegistryMode
from services.settings import ServiceSettings

MAX_WEBHOOKS = 8
"""URLs that are told of events of the registry."""
MAX_TWO_PERSON = 64
"""Patterns of aliases whose moves need two persons; each move is compared with all."""


class RegistrySettings(ServiceSettings, AccessSettings, TrustSettings):
    """Settings of a process with a registry, each with the reason to change it."""

    registry: RegistryMode = "granted"
    """Calls of the registry (`/v1/registry`): with `granted`, callers need the scopes `read`,
    `push`, `promote` and `delete`; without credentials, versions are only read, from this machine.
    Set it to `open` to let callers on this machine write, too, without credentials; `off` for no
    registry."""
    registry_two_person: Annotated[tuple[str, ...], Field(max_length=MAX_TWO_PERSON)] = ()
    """Aliases whose moves through the registry need two callers, as `digits*@production`: one
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
    """URLs such as `https://ci.example.org/models` that are called at each event: a version was
    pushed, promoted, rolled back, deleted or annotated, an alias was removed (`alias_removed`),
    traffic changed (`traffic`: a rollout, a shadow or a split), or a move waits for a second person
    (`asked`). Each call is signed. Empty for none."""
    webhook_secret_file: str = ""
    """File with the secret that signs webhooks: `whsec_` and base64 of 24 bytes or more; required
    for any."""

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
        if self.registry_two_person and not self.asks_for_credentials:
            raise ValueError(
                "registry_two_person is set, and this server asks for no credentials, by which it "
                "would know two persons; set api_keys_file or jwt_keys (docs/guides/security.md)"
            )
        return self


class RegistryConfig(PortSettings, RegistrySettings):
    """All settings of `python -m services.registry_server`."""

    queue: str
    """URL of the Redis or Valkey through which workers tell what they serve; a version that one of
    them holds is not deleted."""
    store: str = "./var/model_store"
    """URL of the model store: a folder, or `s3://bucket/prefix`, `gs://bucket/prefix` or
    `az://container/prefix` when several machines serve it."""
    http_port: int = Field(8007, ge=0, le=65_535)
    """REST port; 0 picks a free port."""
    grpc_port: int = Field(8008, ge=0, le=65_535)
    """gRPC port; 0 picks a free port."""
    metrics_port: int = Field(8009, ge=0, le=65_535)
    """Port of Prometheus metrics; 0 picks a free port."""
    registry: Literal["granted", "open"] = "granted"
    """With `granted`, callers need the scopes `read`, `push`, `promote` and `delete`; without
    credentials, versions are only read, from this machine. Set it to `open` to let callers on this
    machine write, too, without credentials. `off`, which a server of requests knows too, would
    leave this process nothing to do."""

    def of_ports(self) -> GatewaySettings:
        """Returns the settings of the ports; those of inference, which they refuse, are usual."""
        return GatewaySettings(**{name: getattr(self, name) for name in PortSettings.model_fields})
