"""The arguments MODEL and VERSION of commands that read a store: parsing and completion.

Rule: a version is given by two arguments, `digits 2`, or by one, `digits/2`; or by an address as
`flambeau.load` takes it: `digits@2`, `digits@production` or `digits@^1.2`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from flambeau.commands.options.store import DEFAULT_STORE

MAX_DIGITS = 19


def models_that_begin(context: typer.Context, incomplete: str) -> list[str]:
    """Completes names of models in the store; none of a bucket, which takes too long."""
    return [name for name in _versions(context) if name.startswith(incomplete)]


def versions_that_begin(context: typer.Context, incomplete: str) -> list[str]:
    """Completes versions in the store, such as `digits/2`."""
    known = [f"{name}/{one}" for name, there in _versions(context).items() for one in there]
    return [name for name in known if name.startswith(incomplete)]


def _versions(context: typer.Context) -> dict[str, tuple[int, ...]]:
    """Returns versions by model of the store given on the line; never creates a folder."""
    from model_store.errors import StoreError
    from model_store.store import ModelStore

    given = context.params
    url: Any = given.get("from_") or given.get("store") or DEFAULT_STORE
    folder = Path(url.removeprefix("file://")).expanduser()
    if "://" in url.removeprefix("file://") or not folder.is_dir():
        return {}
    try:
        listing = ModelStore(url).listing()
    except StoreError:
        return {}
    return {name: tuple(one.versions) for name, one in listing.items() if one.versions}


def parse_version(text: str) -> int:
    """Parses the number of a version.

    Raises:
        BadParameter: it is not a version number.
    """
    if text.isdecimal() and text.isascii() and len(text) < MAX_DIGITS and int(text) > 0:
        return int(text)
    raise typer.BadParameter(
        f"'{text}' is not a version number, such as 2; flambeau models list shows them"
    )


def model_and_version(model: str, version: int | None) -> tuple[str, int | None]:
    """Returns model and version from both arguments, or from the first alone.

    An address with `@` is returned as it is, because only the store knows its version.

    Raises:
        BadParameter: the first has an invalid version, or both have one.
    """
    if "@" in model and version is not None:
        name = model.partition("@")[0]
        raise typer.BadParameter(f"'{model}' and {version}: give one version, as in {name} 2")
    name, slash, number = model.rpartition("/")
    if not slash or not name or "/" in name or name.startswith("."):  # the store reports it
        return model, version
    if version is not None:
        raise typer.BadParameter(f"'{model}' and {version}: give one version, as in {name} 2")
    return name, parse_version(number)


def named_version(
    model: str, version: int | None, find: Callable[[str], tuple[str, int]]
) -> tuple[str, int]:
    """Same as `model_and_version`, but the version is required.

    Args:
        model: the first argument.
        version: the second one.
        find: returns model and version of an address with an alias or a range, as digits@canary.

    Raises:
        BadParameter: as `model_and_version`, or there is no version.
    """
    name, number = model_and_version(model, version)
    name, _, wanted = name.partition("@")
    if wanted.isdecimal() and wanted.isascii():
        number = parse_version(wanted)
    elif wanted:
        return find(f"{name}@{wanted}")
    if number is None:
        raise typer.BadParameter(
            f"which version of '{name}'? Give MODEL/VERSION, as digits/2", param_hint="VERSION"
        )
    return name, number


ModelOrVersion = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[/VERSION]",
        help="Name of the model, or digits/2, or digits@canary.",
        autocompletion=versions_that_begin,
    ),
]
Version = Annotated[
    int | None,
    typer.Argument(
        metavar="VERSION", parser=parse_version, help="Version number, if MODEL has none."
    ),
]
ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Name of the model.", autocompletion=models_that_begin),
]
VersionOrDefault = Annotated[
    int | None,
    typer.Argument(
        metavar="[VERSION]",
        parser=parse_version,
        help="Version; unless given, the one in production, else the newest.",
    ),
]
