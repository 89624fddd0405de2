"""Asks servers which versions they hold: serve, load, or load again when they are requested.

In: connections to servers. Out: the servers of each version.

Rule: a server that does not answer, or does not tell all, is an error: what it holds is unknown.
"""

from collections.abc import Iterable
from typing import Any

from flambeau.registry.connection import RegistryConnection
from flambeau.registry.errors import RegistryError


def held_versions(connections: Iterable[RegistryConnection]) -> dict[tuple[str, int], list[str]]:
    """Returns the URLs of the servers that hold each version, by model and number.

    Raises:
        RegistryError: a server does not answer, is starting, hides models from this caller, or its
            answer is not a repository index.
    """
    found: dict[tuple[str, int], list[str]] = {}
    for connection in connections:
        entries, is_whole = connection.index()
        if not is_whole:
            raise RegistryError(
                f"{connection.url} does not tell all versions that it holds: it is starting, or "
                "your key does not have infer or manage on all models, or its flambeau is older "
                "than this one; try again, or give another key"
            )
        try:
            if not isinstance(entries, list):
                raise TypeError("no list")
            keys = {_key(entry) for entry in entries if entry.get("version")}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RegistryError(
                f"{connection.url} answers with something else than an index of versions; give "
                "the URL of a flambeau server"
            ) from error
        for key in keys:
            found.setdefault(key, []).append(connection.url)
    return found


def _key(entry: dict[str, Any]) -> tuple[str, int]:
    name, version = entry["name"], entry["version"]
    if not (isinstance(name, str) and isinstance(version, str) and len(version) < 20):
        raise TypeError("neither name nor version of a model")
    return name, int(version)
