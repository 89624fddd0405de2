"""Rollouts at the registry, for the controller: one connection for each call. All calls block.

In: a model, and a request. Out: the registry's documents, and ids of rollouts.

Rule: a run is recognised by its mark in the `why` of the generation that started its rollout.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from flambeau.channel import Tls
from flambeau.registry.connection import RegistryConnection, path_of
from flambeau.registry.errors import RegistryError
from model_store.storage.plain_file import read_plain_file

MAX_TOKEN_BYTES = 64 * 2**10
PAGE = 100
"""Moves of one page of a history; the registry gives no more."""
MOST_PAGES = 10
"""Pages that are read for a run. A run that a thousand moves of its model hide is begun again."""
MAX_ACT_WHY = 500
TIMEOUT_S = 15.0
"""Time without a byte of an answer."""

Document = dict[str, Any]


class Running(BaseModel):
    """A rollout that runs."""

    id: str
    candidate: int
    share: float
    paused: str
    next_step_at: str | None = None


class Last(BaseModel):
    """The end of the last rollout."""

    id: str
    outcome: str
    why: str = ""


class Verdict(BaseModel):
    """Why a rollout stays at its step."""

    reason: str = ""
    next_why: str = ""


class Shown(BaseModel):
    """The state of a model's rollout; see `model_store.rollouts.status`."""

    production: int | None = None
    rollout: Running | None = None
    verdict: Verdict | None = None
    note: str = ""
    last: Last | None = None


class Change(BaseModel):
    """The change that a move made to a rollout, a shadow or a split."""

    kind: str
    act: str
    id: str


class Move(BaseModel):
    """A generation of a model's pointers."""

    why: str = ""
    traffic_changes: tuple[Change, ...] = ()


class Page(BaseModel):
    """A page of moves, the newest first."""

    moves: tuple[Move, ...]
    next: int | None = None


class AwaitedPersonError(RegistryError):
    """A rollout waits for a second person.

    Args:
        model: the model.
        number: number of the request.
    """

    def __init__(self, model: str, number: int) -> None:
        super().__init__(
            f"request {number} waits for a second person: flambeau models approve {model} {number}",
            202,
        )


class RegistryRollouts:
    """The rollouts of all models of a registry.

    Args:
        url: URL of the registry's server.
        token_file: file with an API key or a token, read anew for each call; empty for none.
        ca_file: authorities of the server; empty for the system's.

    Raises:
        RegistryError: the URL is none of a registry.
    """

    def __init__(self, url: str, token_file: str, ca_file: str) -> None:
        self.url = url
        self._token_file = Path(token_file) if token_file else None
        self._tls = Tls(ca_file=ca_file or None)
        RegistryConnection(url)  # refuses a wrong one

    def show(self, model: str) -> Shown:
        """Returns the state of a model's rollout.

        Raises:
            RegistryError: as `RegistryConnection.call`; or the answer has no such state.
        """
        try:
            return Shown.model_validate(self._call("GET", model, "rollout"))
        except ValidationError as error:
            raise self._no_registry("the state of a rollout") from error

    def start(self, model: str, request: Document) -> str:
        """Starts a rollout; returns its id.

        Raises:
            AwaitedPersonError: it was asked for, and a second person has to approve it.
            RegistryError: as `show`.
        """
        pointers = self._call("POST", model, "rollout", document=request)
        try:
            if asked := pointers.get("request"):
                raise AwaitedPersonError(model, asked["number"])
            return str(pointers["traffic"]["rollout"]["id"])
        except (KeyError, TypeError) as error:
            raise RegistryError(f"{self.url} started a rollout and named none") from error

    def act(self, model: str, act: str, why: str, rollout_id: str) -> None:
        """Pauses, resumes or aborts the rollout of an id.

        Raises:
            RegistryConflictError: none runs, or another one.
            RegistryError: as `show`.
        """
        document = {"why": why[:MAX_ACT_WHY], "rollout_id": rollout_id}
        self._call("POST", model, "rollout", act, document=document)

    def started_by(self, model: str, mark: str) -> str:
        """Returns the id of the rollout that a run has started; empty if it has started none.

        Raises:
            RegistryError: as `show`.
        """
        for move in self._moves(model):
            if mark not in move.why:
                continue
            for change in move.traffic_changes:
                if (change.kind, change.act) == ("rollout", "started"):
                    return change.id
        return ""

    def ended(self, model: str, rollout_id: str) -> tuple[str, str]:
        """Returns how a rollout ended (`promoted`, `rolled back`, `aborted`, `ended`), and why.

        Both are empty if no move says so.

        Raises:
            RegistryError: as `show`.
        """
        for move in self._moves(model):
            for change in move.traffic_changes:
                if change.id == rollout_id:
                    return change.act, move.why
        return "", ""

    def _moves(self, model: str) -> Iterator[Move]:
        query = {"limit": str(PAGE)}
        for _ in range(MOST_PAGES):
            try:
                page = Page.model_validate(self._call("GET", model, "history", query=query))
            except ValidationError as error:
                raise self._no_registry("a history") from error
            yield from page.moves
            if page.next is None:
                return
            query["before"] = str(page.next)

    def _no_registry(self, wanted: str) -> RegistryError:
        return RegistryError(
            f"{self.url} answered without {wanted}; give the URL of a registry of this version"
        )

    def _call(
        self,
        method: str,
        *path: str,
        document: Document | None = None,
        query: dict[str, str] | None = None,
    ) -> Document:
        connection = RegistryConnection(self.url, self._token(), self._tls, tries=1)
        with contextlib.closing(connection):
            found = connection.call(
                method, path_of("models", *path), document, query=query, timeout_s=TIMEOUT_S
            )
        if not isinstance(found, dict):
            raise RegistryError(f"{self.url} is no registry: it answered without a document")
        return found

    def _token(self) -> str:
        if self._token_file is None:
            return ""
        try:
            return read_plain_file(self._token_file, MAX_TOKEN_BYTES).decode().strip()
        except (OSError, ValueError) as error:
            raise RegistryError(f"registry_token_file cannot be read: {error}") from error
