"""`flambeau access`: API keys of a server's callers; `flambeau keys` is about signing keys."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from flambeau.commands.options.as_json import AsJson, print_json, print_outcome
from flambeau.commands.options.audit import AuditLog, written_down
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import UNKNOWN, columns

access_app = Verbs(
    no_args_is_help=True, help="Create, list and revoke API keys (a server's api_keys_file)."
)

KeysFile = Annotated[
    Path,
    typer.Option(
        "--file",
        metavar="FILE",
        dir_okay=False,
        help="File of API keys: the server's api_keys_file.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key's owner.")]
DEFAULT_FILE = Path("var/access.yaml")
_SPAN = re.compile(r"([1-9][0-9]{0,4})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@access_app.command()
def add(
    name: Name,
    grants: Annotated[
        list[str],
        typer.Option(
            "--grant",
            metavar="SCOPE[:MODELS]",
            help="Scope infer, manage or train, or of the registry read, push, promote or delete, "
            "with a pattern of models: 'infer:digits*', 'promote:digits*@canary'. May be repeated.",
        ),
    ],
    file: KeysFile = DEFAULT_FILE,
    expires: Annotated[
        str,
        typer.Option(metavar="SPAN", help="Lifetime, such as 12h or 90d; unlimited unless given."),
    ] = "",
    requests_per_s: Annotated[
        float, typer.Option(min=0, help="Rate limit in requests per second; 0 for none.")
    ] = 0,
    rows_per_s: Annotated[
        float, typer.Option(min=0, help="Rate limit in rows per second; 0 for none.")
    ] = 0,
    audit_log: AuditLog = "",
    as_json: AsJson = False,
) -> None:
    """Create a key and print it, once; the file stores only its hash."""
    from pydantic import ValidationError

    from flambeau.protocol.strict import explain
    from services.access.api_keys import ApiKey, KeysFileError, add_key, digest_of, new_key
    from services.settings import ConfigError

    secret = new_key()
    until = datetime.now(UTC).replace(microsecond=0) + _span(expires) if expires else None
    with failing_with({KeysFileError: 1, ConfigError: 2}), written_down("add key", name, audit_log):
        try:
            key = ApiKey(
                name=name,
                sha256=digest_of(secret).hex(),
                grants=tuple(grants),
                expires=until,
                requests_per_s=requests_per_s,
                rows_per_s=rows_per_s,
            )
        except ValidationError as error:
            raise ConfigError(explain(error, ApiKey)) from error
        add_key(file, key)
    facts = key.model_dump(mode="json", exclude={"sha256"})
    print_outcome(secret, {**facts, "key": secret, "file": str(file)}, as_json)
    typer.echo(
        f"added {name} to {file}; the key above is not shown again. A running server accepts it at "
        f"once, with api_keys_file={file}",
        err=True,
    )


@access_app.command("list")
def list_keys(file: KeysFile = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """List the keys with their names, grants, expiry and rate limits."""
    from services.access.api_keys import KeysFileError, read_keys
    from services.settings import ConfigError

    with failing_with({KeysFileError: 1, ConfigError: 2}):
        if not file.exists() and file != DEFAULT_FILE:
            raise ConfigError(f"there is no file {file}; make one with flambeau access add")
        found = read_keys(file).keys
    if as_json:
        print_json([key.model_dump(mode="json", exclude={"sha256"}) for key in found])
        return
    if not found:
        typer.echo(f"{file} holds no key yet; make one with flambeau access add")
        return
    now = datetime.now(UTC)
    rows = [["NAME", "GRANTS", "EXPIRES", "REQUESTS/S", "ROWS/S"]]
    for key in found:
        until = key.expires.isoformat() if key.expires else "never"
        rows.append(
            [
                key.name,
                " ".join(key.grants),
                f"{until} (over)" if key.expires and key.expires <= now else until,
                f"{key.requests_per_s:g}" if key.requests_per_s else UNKNOWN,
                f"{key.rows_per_s:g}" if key.rows_per_s else UNKNOWN,
            ]
        )
    typer.echo("\n".join(columns(rows)))


@access_app.command()
def revoke(
    name: Name,
    file: KeysFile = DEFAULT_FILE,
    audit_log: AuditLog = "",
    as_json: AsJson = False,
) -> None:
    """Remove a key from the file; running servers refuse it within two seconds."""
    from services.access.api_keys import KeysFileError, revoke_key

    with failing_with({KeysFileError: 1}), written_down("revoke key", name, audit_log):
        revoke_key(file, name)
    print_outcome(f"revoked {name}", {"name": name, "file": str(file)}, as_json)


def _span(text: str) -> timedelta:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"'{text}' is not a duration; write it as 12h or 90d", param_hint="--expires"
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
