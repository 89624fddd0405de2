"""A registry as the target of `flambeau import`: a temporary store, whose versions are pushed.

In: imported versions of the store. Out: the same versions at the registry, and an alias moved.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flambeau.commands.options.store import DEFAULT_STORE
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.text.imported import ImportedVersion
from flambeau.registry.url import is_registry

if TYPE_CHECKING:
    from flambeau.registry.connection import RegistryConnection

WHY = "imported"

Say = Callable[[str], None]


class ImportTarget:
    """A registry, and the store that versions are proven in before.

    Args:
        registry: connection to the registry.
        folder: an empty folder for the store.
        say: receives a line for each step.

    Attributes:
        url: URL of the registry.
        store: URL of the store.
    """

    def __init__(self, registry: "RegistryConnection", folder: str, say: Say) -> None:
        from model_store.store import ModelStore

        self.url = registry.url
        self.store = folder
        self._registry, self._opened, self._say = registry, ModelStore(folder), say

    def prepare(self, model: str) -> None:
        """Checks that the caller may push, and gives the store what the next version follows.

        Raises:
            RegistryError: there is no answer, or the caller may not push.
        """
        from flambeau.registry.publication import prepare

        self._say(f"asking {self.url}")
        prepare(self._registry, self._opened, model)
        self._registry.close()  # a server closes it while the version is proven

    def options(self) -> dict[str, Any]:
        """Returns what files are imported with, in place of a store and an alias."""
        return {"store": self.store, "alias": None, "prepare": self.prepare}

    def push(self, version: ImportedVersion, alias: str | None) -> ImportedVersion:
        """Pushes a version of the store, and moves an alias.

        Raises:
            RegistryError: it was not pushed.
            Exit: it was, and the registry refused to move the alias.
        """
        from flambeau.registry.publication import push

        model, number = version.summary["model"], version.summary["version"]
        self._say(f"pushing {model} {number} to {self.url}")
        done = push(self._registry, self._opened, model, number, alias, WHY, self._say)
        if done.refusal:
            typer.echo(f"error: {model} {number} is at {self.url}, and {done.refusal}", err=True)
            raise typer.Exit(1)
        return version.at(self.url, alias if done.moved else None, (done.breaks, done.note))


@contextlib.contextmanager
def import_target(
    to: str, token_file: Path | None, store: str, say: Say
) -> Iterator[ImportTarget | None]:
    """Opens a target for the block, None for an empty URL; errors end the command with code 1.

    Args:
        to: URL of the registry.
        token_file: file of the credential.
        store: the option of a store, which has its default beside a registry.
        say: receives a line for each step.

    Raises:
        BadParameter: the URL is none of a registry, there is a store beside it, or the token cannot
            be used.
    """
    if not to:
        if token_file is not None:
            raise typer.BadParameter("it is for --to URL", param_hint="--token-file")
        yield None
        return
    if not is_registry(to):
        raise typer.BadParameter(
            f"'{to}' is no http(s)://HOST:PORT of a server; name a store by --store",
            param_hint="--to",
        )
    if store != DEFAULT_STORE:
        raise typer.BadParameter("give --to URL or --store URL, not both", param_hint="--to")
    with (
        tempfile.TemporaryDirectory(prefix="flambeau-store-") as folder,
        registry_at(to, token_file) as registry,
    ):
        yield ImportTarget(registry, folder, say)
