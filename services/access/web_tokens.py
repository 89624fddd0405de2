"""Verifies tokens of an identity provider (JWT), and maps their claims to grants.

In: a token's text. Out: its subject, grants and expiry.

Source: RFC 7519, with RFC 8725's advice: the algorithms are a list of ours and not the token's
choice, `none` and shared secrets are excluded, issuer and audience must be present and match, and a
key is used only with its own algorithm.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from model_store.host.install_advice import install_command
from services.access.config import AccessSettings
from services.access.grants import Grant, parse_grant
from services.access.key_set import KeySet
from services.errors import AccessUnavailableError
from services.settings import ConfigError

MAX_TOKEN_BYTES = 8192


class TokenError(Exception):
    """The token is invalid; the message is for the log only."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """The subject of a token, with its grants."""

    subject: str
    grants: tuple[Grant, ...]
    expires_at: float
    """Expiry in seconds of Unix time, including the leeway."""


class WebTokens:
    """Verifies tokens.

    Args:
        settings: issuer, audience, algorithms, claims.

    Raises:
        ConfigError: the libraries are not installed, or a grant cannot be parsed.
    """

    def __init__(self, settings: AccessSettings) -> None:
        try:
            import cryptography  # noqa: F401
            import jwt
        except ImportError as error:
            raise ConfigError(
                f"jwt_keys needs the extra auth ({error}): {install_command('auth')}, "
                "or take the image flambeau/gateway built with CALLERS=auth"
            ) from error
        self._jwt = jwt
        self._settings = settings
        self._grants = parsed_grants(settings.jwt_grants)
        self.keys = KeySet(settings.jwt_keys, settings.jwt_keys_refresh_s)

    def check(self, token: str) -> Bearer:
        """Verifies a token. Takes some 100 µs of CPU time, and never blocks.

        Raises:
            TokenError: it is invalid.
            AccessUnavailableError: its key is not known yet, and is being fetched.
        """
        jwt, settings = self._jwt, self._settings
        if len(token) > MAX_TOKEN_BYTES:
            raise TokenError(f"it has {len(token)} characters, more than {MAX_TOKEN_BYTES}")
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in settings.jwt_algorithms:
                raise TokenError(f"its algorithm is {str(header.get('alg'))[:20]!r}")
            key = self.keys.find(header.get("kid"))
            if key is None:
                if self.keys.may_come():
                    raise AccessUnavailableError("its keys are being fetched; try again")
                raise TokenError(f"its key is unknown: {str(header.get('kid'))[:60]!r}")
            if key.algorithm not in ("", header["alg"]):
                raise TokenError(f"its key is for {key.algorithm[:20]}, not for {header['alg']}")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[header["alg"]],
                audience=settings.jwt_audience,
                issuer=settings.jwt_issuer,
                leeway=settings.jwt_leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise TokenError(f"{type(error).__name__}: {error}") from error
        return Bearer(
            subject=str(claims["sub"])[:128],
            grants=tuple(self._granted(claims)),
            expires_at=float(claims["exp"]) + settings.jwt_leeway_s,
        )

    def _granted(self, claims: Mapping[str, Any]) -> Iterator[Grant]:
        for value in claim_values(claims, self._settings.jwt_claim):
            if self._grants:
                yield from self._grants.get(value, ())
                continue
            try:
                yield parse_grant(value)
            except ValueError:
                continue  # a claim may have values for other services


def parsed_grants(texts: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[Grant, ...]]:
    """Parses the grants of the setting `jwt_grants`.

    Raises:
        ConfigError: a grant cannot be parsed.
    """
    try:
        return {name: tuple(map(parse_grant, grants)) for name, grants in texts.items()}
    except ValueError as error:
        raise ConfigError(f"jwt_grants: {error}") from error


def claim_values(claims: Mapping[str, Any], name: str) -> list[str]:
    """Returns the values of a claim: its space-separated text, or its list.

    A name with dots, which may be a URL, is looked up as it is, and then as a path into objects.
    """
    found: Any = claims
    if name in claims:
        found = claims[name]
    else:
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return found.split()
    return [value for value in found if isinstance(value, str)] if isinstance(found, list) else []
