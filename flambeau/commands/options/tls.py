"""TLS for every verb that calls a server: options of `flambeau` itself, before the verb."""

from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flambeau.channel import Tls

UseTls = Annotated[
    bool,
    typer.Option("--tls", help="Call servers in TLS, trusting public authorities."),
]
CaFile = Annotated[
    Path | None,
    typer.Option(help="Call servers in TLS, trusting the authorities in this PEM file."),
]
CertificateFile = Annotated[
    Path | None,
    typer.Option(help="Our certificate (PEM), for servers that ask for one."),
]
KeyFile = Annotated[Path | None, typer.Option(help="Its private key (PEM).")]

_chosen: ContextVar["Tls | None"] = ContextVar("tls", default=None)


def keep_tls(
    use_tls: bool,
    ca_file: Path | None,
    certificate_file: Path | None,
    key_file: Path | None,
) -> None:
    """Keeps what was asked for until a verb calls a server.

    Raises:
        BadParameter: half a pair, or a file that is not there.
    """
    _chosen.set(None)
    if not (use_tls or ca_file or certificate_file or key_file):
        return
    from flambeau.channel import Tls  # it takes its time to import, and most verbs call nobody

    tls = Tls(ca_file=ca_file, certificate_file=certificate_file, key_file=key_file)
    try:
        tls.credentials()
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    _chosen.set(tls)


def chosen_tls() -> "Tls | None":
    """How this command line calls servers; None without TLS."""
    return _chosen.get()
