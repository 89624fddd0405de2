"""`flambeau report`: the measurements at the publication of a version."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from flambeau.commands.models import open_version
from flambeau.commands.options.model import ModelName, VersionOrDefault
from flambeau.commands.options.output import writable_file
from flambeau.commands.options.store import DEFAULT_STORE, STORE_FAILURES, StoreUrl
from flambeau.commands.text.failures import failing_with

JSON, PAGE = "report.json", "report.html"
MAX_REPORT_BYTES = 2**26


@failing_with({**STORE_FAILURES, OSError: 1})
def report(
    model: ModelName,
    version: VersionOrDefault = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(callback=writable_file, help="Output file; MODEL-VERSION.html unless given."),
    ] = None,
) -> None:
    """Write the report of a version as a page with plots, and open it if this is a terminal."""
    opened, manifest = open_version(store, model, version)
    name = JSON if as_json else PAGE
    entry = manifest.file(name)
    if entry is None:
        typer.echo(
            f"error: version {manifest.version} of '{manifest.model}' has no {name}: it was not "
            "published by flambeau train, or by an older one; publish it again",
            err=True,
        )
        raise typer.Exit(1)
    data = opened.read_file(manifest, entry, MAX_REPORT_BYTES)
    if as_json:
        typer.echo(data, nl=False)
        return
    path = output or Path(f"{manifest.model}-{manifest.version}.html")
    path.write_bytes(data)
    typer.echo(f"wrote {path}")
    if output is None and sys.stdout.isatty():
        typer.launch(str(path))
