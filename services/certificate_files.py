"""Reads PEM files that are renewed at run time: content, expiry date, and changes."""

import re
import ssl
from pathlib import Path

from model_store.storage.plain_file import read_plain_file
from services.certificate_dates import not_after_s
from services.settings import ConfigError

MAX_PEM_BYTES = 2**20
"""Limit of a PEM file; a Linux distribution's file of all public authorities has a fourth of it."""
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]++-----END CERTIFICATE-----")

Mark = tuple[int, int, int]
"""State of a file, to detect changes: inode, modification time in ns, size in bytes."""


def mark_of(file: Path) -> Mark:
    """Returns the mark of a file or folder; zeros if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def read_certificates(file: Path, setting: str) -> tuple[bytes, float]:
    """Reads a file of certificates, and the earliest of their expiry times.

    Args:
        file: a PEM file.
        setting: the setting that names the file, for the error.

    Returns:
        Its bytes, and the earliest expiry in seconds since 1970.

    Raises:
        ConfigError: it cannot be read, or holds no certificate.
    """
    pem = read_file(file, setting)
    try:
        found = [
            not_after_s(ssl.PEM_cert_to_DER_cert(text.decode("ascii")))
            for text in _CERTIFICATE.findall(pem)
        ]
    except ValueError as error:
        raise ConfigError(f"{setting} holds a certificate that cannot be read: {error}") from error
    if not found:
        raise ConfigError(
            f"{setting} holds no certificate; give a PEM file (-----BEGIN CERTIFICATE-----)"
        )
    return pem, min(found)


def read_file(file: Path, setting: str) -> bytes:
    """Reads a file.

    Raises:
        ConfigError: it cannot be read, is not a regular file, or is above `MAX_PEM_BYTES`.
    """
    try:
        return read_plain_file(file, MAX_PEM_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{setting} '{file}' cannot be read ({error.strerror}); name a PEM file that this "
            "process may read"
        ) from error


def openssl_words(error: Exception) -> str:
    """Returns OpenSSL's message without the position in its source."""
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
