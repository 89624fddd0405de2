"""The place of the models that a command acts on: a store, or the registry of a server.

In: the options of the command line. Out: the same documents from both.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from flambeau.commands.options.store import existing_store
from flambeau.commands.places.server_place import ServerPlace
from flambeau.commands.places.store_place import StorePlace
from flambeau.commands.remote.connecting import registry_at


class ModelPlace(Protocol):
    """Calls on models. A change returns its document, or the request for it that waits.

    Attributes:
        url: URL of the server; empty for a store.
    """

    url: str

    def find(self, address: str) -> tuple[str, int]:
        """Returns model and version of an address with an alias or a range, as digits@canary."""

    def promote(
        self, model: str, version: int, alias: str, *, allow_breaking: bool, why: str
    ) -> dict[str, Any]:
        """Points an alias at a version, and returns the new pointers with what changed."""

    def roll_back(self, model: str, alias: str, why: str) -> dict[str, Any]:
        """Points an alias at its previous version, and returns the same as `promote`."""

    def remove_alias(self, model: str, alias: str, why: str) -> dict[str, Any]:
        """Removes an alias, and returns the new pointers."""

    def delete(self, model: str, version: int, why: str) -> dict[str, Any]:
        """Deletes a version, and returns the record of it."""

    def annotate(self, model: str, version: int | None, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes tags or the description of a version, or of the model for None."""

    def traffic_changes(self, model: str, generation: int) -> list[tuple[str, str]]:
        """Returns act and text of each change of the traffic; none if the place cannot tell."""

    def traffic(self, model: str, kind: str) -> dict[str, Any]:
        """Returns the status document of a rollout, a shadow or a split."""

    def start(self, model: str, kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Starts a rollout, a shadow or a split, and returns the new pointers."""

    def act(self, model: str, act: str, why: str) -> dict[str, Any]:
        """Does an act such as `rollout pause`, and returns the new pointers."""


@contextlib.contextmanager
def model_place(store: str, server: str, token_file: Path | None) -> Iterator[ModelPlace]:
    """Opens the store, or a connection to the server if one is given, for the block.

    Raises:
        StoreError: the store does not exist, or cannot be opened.
        BadParameter: the token cannot be used.
    """
    if server:
        with registry_at(server, token_file) as registry:
            yield ServerPlace(registry)
    else:
        yield StorePlace(existing_store(store))
