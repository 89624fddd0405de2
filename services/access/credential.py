"""Extracts the credential from the headers of a call, the same over REST and gRPC.

Source: RFC 6750 for `Authorization: Bearer`; `x-api-key` is a convention of many gateways.
"""

import re
from collections.abc import Iterable

from services.errors import InvalidRequestError

_BEARER = re.compile(r"bearer +([!-~]+)", re.IGNORECASE)
_NAMES = ("authorization", "x-api-key")


def secret_of(authorization: str, api_key: str) -> str:
    """Returns the credential of a call; empty if there is none, or it is malformed.

    Raises:
        InvalidRequestError: there are two; a proxy in front may have checked the other one.
    """
    if authorization:
        if api_key:
            raise InvalidRequestError(
                "the call has two credentials, authorization and x-api-key; send one of them"
            )
        found = _BEARER.fullmatch(authorization.strip())
        return found[1] if found else ""
    return api_key.strip()


def secret_among(fields: Iterable[tuple[str, str]]) -> str:
    """Returns the credential from all headers or metadata of a call.

    Args:
        fields: lower-case names, and values.

    Raises:
        InvalidRequestError: there are two.
    """
    found: dict[str, str] = {}
    for name, value in fields:
        if name in _NAMES:
            if name in found:
                raise InvalidRequestError(f"{name} occurs twice; give one")
            found[name] = value
    return secret_of(found.get("authorization", ""), found.get("x-api-key", ""))
