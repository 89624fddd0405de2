"""What there is to set about who may do what: a part of every server's configuration."""

import ipaddress
from typing import Literal

from pydantic import ConfigDict, Field

from model_store.strict import StrictModel
from services.settings import ConfigError

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""Of RFC 7518 and RFC 8037, those with a public key; `none` and shared secrets are never taken."""


class AccessSettings(StrictModel):
    """The settings; a field's text is the help of its option."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    api_keys_file: str = ""
    """File of API keys, as `flambeau access` writes it; watched, so that a change needs no restart.
    With it, or with `jwt_keys`, every call needs a credential but those that tell no secret, such
    as for health (docs/security.md)."""
    jwt_keys: str = ""
    """Public keys of an identity provider whose tokens (JWT) are taken: a file, or an https URL,
    with a JSON Web Key Set; its `jwks_uri` in OpenID Connect."""
    jwt_issuer: str = ""
    """What tokens must have as `iss`; needed with `jwt_keys`."""
    jwt_audience: str = ""
    """What tokens must have as `aud`, or among it; needed with `jwt_keys`, for without it a token
    made for another service would open this one."""
    jwt_algorithms: tuple[Algorithm, ...] = Field(("RS256", "ES256", "EdDSA"), min_length=1)
    """Signatures that are taken; change it to what the identity provider uses."""
    jwt_leeway_s: float = Field(30.0, ge=0, le=600)
    """How far the clocks of the identity provider and this machine may be apart."""
    jwt_claim: str = "scope"
    """The claim that says what its bearer may do: text with blanks, or a list; dots lead into
    objects, as in `realm_access.roles`."""
    jwt_grants: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """What a value of the claim is good for, as `{data-science: ["infer:*", "train:*"]}`. Empty
    takes values as they are where they are grants, such as `infer:digits*`."""
    jwt_requests_per_s: float = Field(0, ge=0, le=1e9)
    """Requests a second that each subject of the identity provider may send; 0 for no limit."""
    jwt_rows_per_s: float = Field(0, ge=0, le=1e12)
    """Rows a second, likewise."""
    jwt_keys_refresh_s: float = Field(300.0, ge=10, le=86_400)
    """How old the keys from a URL may become; a token that names a key we do not know has them
    fetched at once, but not more often than every ten seconds."""
    audit_log: str = ""
    """File that every act of management is appended to, as JSON lines; empty for the log of the
    process."""

    @property
    def asks_for_credentials(self) -> bool:
        """Whether callers must be known."""
        return bool(self.api_keys_file or self.jwt_keys)


def check_open(settings: AccessSettings, host: str, *, is_opened: bool | None = None) -> None:
    """Refuses to be reached from other machines without knowing who comes.

    Args:
        settings: who is asked for what.
        host: listened on.
        is_opened: whether `open_to_strangers` is set; None for a server that has no such setting,
            because all that it does is management.

    Raises:
        ConfigError: it would be.
    """
    if settings.jwt_keys and not (settings.jwt_issuer and settings.jwt_audience):
        raise ConfigError("jwt_keys needs jwt_issuer and jwt_audience, or any token would do")
    if settings.asks_for_credentials or is_opened or is_loopback(host):
        return
    otherwise = (
        ""
        if is_opened is None
        else "; or, if something in front decides who may come, set open_to_strangers=true, which "
        "opens inference alone"
    )
    raise ConfigError(
        f"host is '{host}', so that other machines reach this server, and nobody is asked who they "
        "are. Give out keys (flambeau access add NAME --grant SCOPE --file keys.yaml) and set "
        f"api_keys_file=keys.yaml, or set jwt_keys; or listen on 127.0.0.1{otherwise}"
    )


def is_loopback(host: str) -> bool:
    """Whether an address is for this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
