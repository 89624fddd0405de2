"""The place of a command on a model's traffic: a store, or the registry of a server.

In: the options of the command line. Out: the same documents from both.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from flambeau.commands.options.as_json import print_outcome
from flambeau.commands.options.model import model_and_version, parse_version
from flambeau.commands.options.store import STORE_FAILURES, existing_store
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.remote.move_requests import tell_request
from flambeau.commands.text.rollouts import moved_line
from model_store.errors import InvalidRolloutError

if TYPE_CHECKING:
    from flambeau.registry.connection import RegistryConnection
    from model_store.store import ModelStore

ENDING = ("rollout abort", "rollout promote", "shadow stop", "split end")
"""Acts that end what runs."""
ENDS = ("promoted", "rolled back", "aborted", "ended")
"""Changes of the traffic that are an end."""
FAILURES: dict[type[Exception], int] = {**STORE_FAILURES, InvalidRolloutError: 2}
OfServer = Annotated[
    str,
    typer.Option(
        "--server", "--at", metavar="URL", help="At the server http(s)://HOST:PORT, not a store."
    ),
]
Why = Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded in the history.")]
Sticky = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="Keep requests with one value of header:NAME or parameter:NAME on one version.",
    ),
]


class TrafficPlace(Protocol):
    """Calls on the rollout, the shadow and the split of models.

    Attributes:
        url: URL of the server; empty for a store.
    """

    url: str

    def find(self, address: str) -> tuple[str, int]:
        """Returns model and version of an address with an alias or a range, as digits@canary."""

    def ended(self, model: str, generation: int) -> list[str]:
        """Returns what of the traffic a generation ended, in words; nothing if it cannot tell."""

    def show(self, model: str, kind: str) -> dict[str, Any]:
        """Returns the status document of a kind."""

    def start(self, model: str, kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Starts a rollout, a shadow or a split, and returns the new pointers."""

    def act(self, model: str, act: str, why: str) -> dict[str, Any]:
        """Does an act such as `rollout pause`, and returns the new pointers."""


class _AtStore:
    url = ""

    def __init__(self, store: "ModelStore") -> None:
        self._store = store

    def find(self, address: str) -> tuple[str, int]:
        """Returns model and version of an address."""
        from model_store.version_address import find_version

        found = find_version(self._store, address)
        return found.model, found.version

    def ended(self, model: str, generation: int) -> list[str]:
        """Returns what of the traffic a generation ended."""
        from model_store.rollouts.traffic_changes import traffic_changes

        after = self._store.pointers_at(model, generation)
        before = self._store.pointers_at(model, generation - 1)
        changes = traffic_changes(before, after)
        return [one.text for one in changes if one.act in ENDS]

    def show(self, model: str, kind: str) -> dict[str, Any]:
        """Returns the status document of a kind."""
        from services.rollouts.calls import STATUS

        return STATUS[kind](self._store, model)

    def start(self, model: str, kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Starts a rollout, a shadow or a split."""
        from services.rollouts.calls import read_request, start

        return start(self._store, model, read_request(kind, wanted)).model_dump(mode="json")

    def act(self, model: str, act: str, why: str) -> dict[str, Any]:
        """Does an act."""
        from services.rollouts.calls import ACTS, act_on

        return act_on(self._store, model, act, ACTS[act](why=why)).model_dump(mode="json")


class _AtServer:
    def __init__(self, registry: "RegistryConnection") -> None:
        self._registry = registry
        self.url = registry.url

    def find(self, address: str) -> tuple[str, int]:
        """Returns model and version of an address."""
        from flambeau.registry.pull import wanted_version

        model, _, wanted = address.partition("@")
        return model, wanted_version(self._registry, model, wanted)

    def ended(self, model: str, generation: int) -> list[str]:
        """Returns what of the traffic a generation ended; nothing if that may not be read."""
        from flambeau.registry.connection import path_of
        from flambeau.registry.errors import RegistryError

        page = {"limit": "1", "before": str(generation + 1)}
        try:
            found = self._registry.call("GET", path_of("models", model, "history"), query=page)
            changes = [change for move in found["moves"] for change in move["traffic_changes"]]
            return [str(one["text"]) for one in changes if one["act"] in ENDS]
        except (RegistryError, KeyError, TypeError):
            return []

    def show(self, model: str, kind: str) -> dict[str, Any]:
        """Returns the status document of a kind."""
        return self._called("GET", model, kind)

    def start(self, model: str, kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Starts a rollout, a shadow or a split."""
        return self._called("POST", model, kind, wanted)

    def act(self, model: str, act: str, why: str) -> dict[str, Any]:
        """Does an act."""
        return self._called("POST", model, act, {"why": why})

    def _called(
        self, method: str, model: str, act: str, document: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        from flambeau.registry.connection import path_of
        from flambeau.registry.errors import RegistryError

        path = path_of("models", model, *act.split())
        found = self._registry.call(method, path, document)
        if not isinstance(found, dict):
            raise RegistryError(f"{self._registry.url} answered without a document of {act}")
        return found


@contextlib.contextmanager
def traffic_place(store: str, server: str, token_file: Path | None) -> Iterator[TrafficPlace]:
    """Opens the store, or a connection to the server, for the block.

    Raises:
        StoreError: the store does not exist, or cannot be opened.
    """
    if server:
        with registry_at(server, token_file) as registry:
            yield _AtServer(registry)
    else:
        yield _AtStore(existing_store(store))


def candidate_of(place: TrafficPlace, named: str, version: int | None) -> tuple[str, int]:
    """Returns model and version of the arguments MODEL and VERSION, or of an address alone.

    Raises:
        BadParameter: they name no version, or two.
        StoreError: the store has no such version.
    """
    model, number = model_and_version(named, version)
    if "@" in model:
        name, _, wanted = model.partition("@")
        is_number = wanted.isdecimal() and wanted.isascii()
        return (name, parse_version(wanted)) if is_number else place.find(model)
    if number is None:
        raise typer.BadParameter(
            f"which version of '{model}'? Give MODEL/VERSION, as digits/2", param_hint="VERSION"
        )
    return model, number


def print_moved(
    place: TrafficPlace,
    model: str,
    moved: dict[str, Any],
    as_json: bool,
    *,
    is_end: bool = False,
) -> None:
    """Prints new pointers, or the request for them that waits for a second person.

    Args:
        place: where they were moved.
        model: name of the model.
        moved: the pointers, or the request.
        as_json: True for JSON.
        is_end: True if the act has ended a rollout, a shadow or a split, which is then named.
    """
    if tell_request(moved, place.url, as_json):
        return
    ended = place.ended(model, moved["generation"]) if is_end and not as_json else []
    print_outcome(moved_line(model, moved, ended), {"model": model, **moved}, as_json)
