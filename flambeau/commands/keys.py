"""`flambeau keys`: the keys that sign versions here, and the keys that are trusted."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flambeau.commands.options.as_json import AsJson, print_json, print_outcome
from flambeau.commands.options.keys import KeysFolder
from flambeau.commands.options.store import STORE_FAILURES
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import UNKNOWN, columns

keys_app = Verbs(no_args_is_help=True, help="Make, trust and list keys that sign versions.")


@keys_app.command()
@failing_with(STORE_FAILURES)
def new(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of the key.")] = "default",
    keys: KeysFolder = "",
    as_json: AsJson = False,
) -> None:
    """Create a key pair: versions published from now on are signed with it."""
    from model_store.signatures.key_folder import KeyFolder

    key = KeyFolder(keys).new(name)
    if as_json:
        print_json(asdict(key))
        return
    typer.echo(f"key {key.name}, fingerprint {key.fingerprint}")
    typer.echo(f"public half, to distribute: {key.file}")
    typer.echo(f"to trust it here: flambeau keys trust {key.file}")


@keys_app.command()
@failing_with(STORE_FAILURES)
def trust(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.pem", exists=True, dir_okay=False, help="File of a public key."
        ),
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the key; the file's name unless given.")
    ] = "",
    keys: KeysFolder = "",
    as_json: AsJson = False,
) -> None:
    """Trust a public key: code signed with it is loaded from any store."""
    from model_store.signatures.key_folder import KeyFolder

    key = KeyFolder(keys).trust(file, name)
    print_outcome(f"trusted: {key.name}, fingerprint {key.fingerprint}", asdict(key), as_json)


@keys_app.command("list")
@failing_with(STORE_FAILURES)
def list_keys(
    keys: KeysFolder = "",
    as_json: AsJson = False,
) -> None:
    """List the keys: fingerprint, signing and trusted keys."""
    from model_store.signatures.key_folder import KeyFolder

    folder = KeyFolder(keys)
    found = folder.keys()
    if as_json:
        print_json([asdict(key) for key in found])
    elif found:
        rows = [
            [
                key.name,
                "yes" if key.is_private else UNKNOWN,
                "yes" if key.is_trusted else UNKNOWN,
                key.fingerprint,
            ]
            for key in found
        ]
        typer.echo("\n".join(columns([["NAME", "SIGNS", "TRUSTED", "FINGERPRINT"], *rows])))
    else:
        typer.echo(f"{folder.folder} holds no key yet; make one with flambeau keys new")
