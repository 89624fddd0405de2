"""`flambeau models list` and `show` with `--server`: the contents of a server's registry."""

import json
from pathlib import Path

import typer

from flambeau.commands.options.as_json import print_json
from flambeau.commands.options.model import model_and_version
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.text.model import PRODUCTION, show_lines
from flambeau.commands.text.moves import printable
from flambeau.commands.text.tables import UNKNOWN, columns

PAGE = 100
"""Models of one call, as many as a registry gives."""


def list_at(url: str, token_file: Path | None, as_json: bool) -> None:
    """Prints the models of a registry, with their newest versions and aliases."""
    found = []
    with registry_at(url, token_file) as registry:
        query = {"limit": str(PAGE)}
        while True:
            page = registry.call("GET", "models", query=query)
            found += page["models"]
            if page["next"] is None:
                break
            query["after"] = page["next"]
    if as_json:
        print_json(found)
        return
    if not found:
        typer.echo(f"{url} has no model that you may see")
        return
    rows = [["MODEL", PRODUCTION.upper(), "NEWEST", "OTHER ALIASES"]]
    for one in found:
        aliases = dict(one.get("aliases", {}))
        live = str(aliases.pop(PRODUCTION, UNKNOWN))
        others = ", ".join(f"{alias} → {version}" for alias, version in sorted(aliases.items()))
        newest = str(one.get("newest", UNKNOWN))
        rows.append([printable(t) for t in (one["name"], live, newest, others or UNKNOWN)])
    typer.echo("\n".join(columns(rows)))


def show_at(
    url: str, token_file: Path | None, named: str, version: int | None, as_json: bool
) -> None:
    """Prints a version of a registry: the given one, that of an alias, production or the newest."""
    from flambeau.registry.connection import path_of
    from flambeau.registry.pull import wanted_version
    from model_store.manifest import parse_manifest

    name, number = model_and_version(named, version)
    name, _, wanted = name.partition("@")
    with registry_at(url, token_file) as registry:
        number = number or wanted_version(registry, name, wanted)
        found = registry.call("GET", path_of("models", name, "versions", number))
    if as_json:
        print_json(found)
        return
    manifest = parse_manifest(json.dumps(found["manifest"]).encode(), f"manifest of {named}")
    typer.echo("\n".join(map(printable, show_lines(manifest, found["aliases"]))))
