"""TLS options of every command that calls a server; they are given before the command."""

from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flambeau.channel import Tls

UseTls = Annotated[
    bool,
    typer.Option("--tls", help="Use TLS, and trust public certificate authorities."),
]
CaFile = Annotated[
    Path | None,
    typer.Option(help="Use TLS, and trust the certificate authorities in this PEM file."),
]
CertificateFile = Annotated[
    Path | None,
    typer.Option(help="Client certificate (PEM), for servers that require one."),
]
KeyFile = Annotated[Path | None, typer.Option(help="Private key of the client certificate (PEM).")]

_chosen: ContextVar["Tls | None"] = ContextVar("tls", default=None)


def keep_tls(
    use_tls: bool,
    ca_file: Path | None,
    certificate_file: Path | None,
    key_file: Path | None,
) -> None:
    """Stores the TLS options until a command calls a server.

    Raises:
        BadParameter: a certificate without its key or the reverse, or a missing file.
    """
    _chosen.set(None)
    if not (use_tls or ca_file or certificate_file or key_file):
        return
    from flambeau.channel import Tls  # slow to import, and most commands call no server

    tls = Tls(ca_file=ca_file, certificate_file=certificate_file, key_file=key_file)
    try:
        tls.credentials()
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    _chosen.set(tls)


def chosen_tls() -> "Tls | None":
    """Returns the TLS settings of this command line; None without TLS."""
    return _chosen.get()
