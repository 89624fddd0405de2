"""Where a call carries its credential: the same over REST and gRPC.

Source: RFC 6750 for `Authorization: Bearer`; `x-api-key` is a custom of many gateways.
"""

import re

_BEARER = re.compile(r"bearer +([!-~]+)", re.IGNORECASE)


def secret_of(authorization: str, api_key: str) -> str:
    """The credential of a call; empty if there is none that can be read."""
    if authorization:
        found = _BEARER.fullmatch(authorization.strip())
        return found[1] if found else ""
    return api_key.strip()
