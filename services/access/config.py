"""Settings of access control: a part of every server's configuration."""

import ipaddress
from typing import Literal

from pydantic import ConfigDict, Field

from flambeau.protocol.strict import StrictModel
from services.settings import ConfigError

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Public-key algorithms of RFC 7518 and RFC 8037; `none` and shared secrets are never accepted."""


class AccessSettings(StrictModel):
    """The settings; a field's docstring is the help of its option."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    api_keys_file: str = ""
    """File of API keys, written by `flambeau access`; changes are loaded without a restart. With
    it, or with `jwt_keys`, every call requires a credential, except calls that reveal no secret,
    such as health checks (docs/guides/security.md)."""
    jwt_keys: str = ""
    """Public keys of an identity provider whose tokens (JWT) are accepted: a file or an https URL
    of a JSON Web Key Set; its `jwks_uri` in OpenID Connect."""
    jwt_issuer: str = ""
    """Required `iss` of tokens; needed with `jwt_keys`."""
    jwt_audience: str = ""
    """Required `aud` of tokens, or one of them; needed with `jwt_keys`, as otherwise tokens for
    another service would be valid here."""
    jwt_algorithms: tuple[Algorithm, ...] = Field(("RS256", "ES256", "EdDSA"), min_length=1)
    """Accepted signature algorithms; set it to those of the identity provider."""
    jwt_leeway_s: float = Field(30.0, ge=0, le=600)
    """Tolerated clock difference, in seconds, between the identity provider and this machine."""
    jwt_claim: str = "scope"
    """The claim with the bearer's permissions: space-separated text, or a list; dots descend into
    objects, as in `realm_access.roles`."""
    jwt_grants: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Grants by value of the claim, such as `{data-science: ["infer:*", "train:*"]}`. If empty,
    values that are grants themselves, such as `infer:digits*`, apply directly."""
    jwt_requests_per_s: float = Field(0, ge=0, le=1e9)
    """Limit of requests per second of each subject of the identity provider; 0 for no limit."""
    jwt_rows_per_s: float = Field(0, ge=0, le=1e12)
    """Limit of rows per second of each subject; 0 for no limit."""
    jwt_keys_refresh_s: float = Field(300.0, ge=10, le=86_400)
    """Seconds after which keys from a URL are fetched again. A token with an unknown key triggers
    a fetch at once, but at most one in ten seconds."""
    audit_log: str = ""
    """File that every management act is appended to, as JSON lines; empty for the log of the
    process."""

    @property
    def asks_for_credentials(self) -> bool:
        """True if callers must authenticate."""
        return bool(self.api_keys_file or self.jwt_keys)


def check_open(settings: AccessSettings, host: str, *, is_opened: bool | None = None) -> None:
    """Refuses a server that other machines can reach without authentication.

    Args:
        settings: access settings.
        host: address that the server listens on.
        is_opened: True if `open_to_strangers` is set; None for a server without this setting,
            because all its operations are management.

    Raises:
        ConfigError: other machines could reach it, or the settings of tokens are incomplete.
    """
    if settings.jwt_keys and not (settings.jwt_issuer and settings.jwt_audience):
        raise ConfigError(
            "jwt_keys needs jwt_issuer and jwt_audience, or any token would be accepted"
        )
    if settings.asks_for_credentials or is_opened or is_loopback(host):
        return
    otherwise = (
        ""
        if is_opened is None
        else "; or, if a proxy in front controls access, set open_to_strangers=true, which opens "
        "inference and jobs alone"
    )
    raise ConfigError(
        f"host is '{host}', so that other machines reach this server, and it requires no "
        "credentials. Give out keys (flambeau access add NAME --grant SCOPE --file keys.yaml) and "
        f"set api_keys_file=keys.yaml, or set jwt_keys; or listen on 127.0.0.1{otherwise}"
    )


def is_loopback(host: str) -> bool:
    """Returns True if an address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
