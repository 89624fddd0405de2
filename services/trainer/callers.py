"""Who may train: callers with a token that the operator gave them.

In: the lines of a file, and the `Authorization` header of a call. Out: the caller's name, or an
error. Tokens are compared in constant time and kept as digests.
"""

import hashlib
import hmac
import ipaddress
import re
from pathlib import Path

from services.errors import NotAllowedError, UnauthenticatedError
from services.settings import ConfigError

_LINE = re.compile(r"([A-Za-z0-9._@-]{1,64})\s+([!-~]{16,256})")
_HEADER = re.compile(r"bearer\s+([!-~]+)", re.IGNORECASE)
HOW = "send it as 'Authorization: Bearer TOKEN', with the command line by --token-file"


class Callers:
    """Those who may train.

    Args:
        names: a caller's name by the sha256 of the token; None if there are no tokens here.
    """

    def __init__(self, names: dict[bytes, str] | None) -> None:
        self._names = names

    def identify(self, authorization: str) -> str:
        """The name of a caller who wants to change something; empty where there are no tokens.

        Args:
            authorization: the header, empty if there is none.

        Raises:
            UnauthenticatedError: a token is needed, and is missing or unknown.
        """
        if self._names is None:
            return ""
        found = _HEADER.fullmatch(authorization.strip())
        if found is None:
            raise UnauthenticatedError(f"this needs the token of a caller allowed to train; {HOW}")
        digest = _digest(found[1])
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                return name
        raise UnauthenticatedError("nobody here has this token; ask the operator for one")

    def check_code(self, caller: str, what: str) -> None:
        """Refuses foreign code of a caller who is not known.

        Args:
            caller: as `identify` gave it.
            what: of the code, for the message.

        Raises:
            NotAllowedError: there are no tokens here, so nobody may bring code.
        """
        if not caller:
            raise NotAllowedError(
                f"{what} runs only for callers allowed to train, and this service knows none: "
                "its operator may name them in a file (tokens_file)"
            )


def read_callers(tokens_file: str, host: str, api: bool) -> Callers:
    """Reads who may train.

    Args:
        tokens_file: of the configuration.
        host: where the service listens.
        api: whether it listens at all.

    Raises:
        ConfigError: the file cannot be read or has a bad line, or there is none although strangers
            could reach the service.
    """
    if not tokens_file:
        if api and not _is_local(host):
            raise ConfigError(
                f"host is '{host}', so that others can reach the service and train with it; name "
                "those who may in a file (tokens_file), or listen on 127.0.0.1"
            )
        return Callers(None)
    try:
        lines = Path(tokens_file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read tokens_file {tokens_file}: {error}") from error
    names = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise ConfigError(
                f"line {number} of tokens_file {tokens_file} is not 'NAME TOKEN', with a token of "
                "16 to 256 printable characters"
            )
        names[_digest(found[2])] = found[1]
    if not names:
        raise ConfigError(f"tokens_file {tokens_file} names nobody; add a line 'NAME TOKEN'")
    return Callers(names)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
