"""`flambeau models uploads`: a caller's unfinished uploads at a server."""

from typing import Annotated

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.registry import ServerUrl
from flambeau.commands.options.token import TokenFile
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.text.moves import printable, time_text
from flambeau.commands.text.tables import columns, size_text


def uploads(
    server: ServerUrl,
    abandon: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Abandon this upload, or 'all' of yours; may be repeated."),
    ] = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show your unfinished uploads at a server, the newest first, after abandoning some."""
    from flambeau.registry.connection import path_of

    with registry_at(server, token_file) as registry:
        ids = abandon or []
        if "all" in ids:
            ids = [one["id"] for one in registry.call("GET", "uploads")["uploads"]]
        for upload_id in ids:
            registry.call("DELETE", path_of("uploads", upload_id))
        found = registry.call("GET", "uploads")["uploads"]
    if as_json:
        print_json(found)
    elif found:
        rows = [["UPLOAD", "VERSION", "RECEIVED", "OF", "BEGUN"]]
        for one in found:
            version = printable(f"{one['model']}/{one['version']}")
            sizes = size_text(one["received"]), size_text(one["size_bytes"])
            rows.append([printable(one["id"]), version, *sizes, time_text(one["begun_at"])])
        typer.echo("\n".join(columns(rows)))
    else:
        typer.echo("you have no unfinished upload there")
