"""The registry: reads the store, takes uploads, and describes and deletes versions.

In: calls of a `Principal`. Out: plain values for JSON, documents that are JSON, or bytes of files;
every failure is a `ServingError`.

Rules: each call needs a scope on its model; each act is audited, with who, why and from where;
reading and writing the store happens in threads of lower priority, and a limited number of calls
wait for one.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from flambeau.protocol.names import is_name
from model_store.errors import BreakingVersionError
from model_store.manifest import MANIFEST, SIGNATURE
from model_store.records.annotations import annotate
from model_store.records.deletion import delete_version
from model_store.records.moves import parse_time, pointers_when, state_document
from model_store.records.push_record import PushRecord
from model_store.semver.breaking import broken_callers_of_production
from model_store.store import ModelStore
from model_store.transfer import CopyReport
from model_store.uploads.declaration import Declaration
from model_store.uploads.uploads import Uploads, UploadState
from services.access.audit import audited
from services.access.caller import Principal
from services.access.grants import Scope
from services.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ServingError,
    UnknownModelError,
    UnsupportedError,
)
from services.interpreter_lock import lend_lock
from services.low_priority_thread import STEPS_BELOW_LOOP, lower_priority
from services.registry import documents
from services.registry.call_arguments import NO_UPLOADS, check_why, owner_of, who_of
from services.registry.callers.deployment_callers import DeploymentCallers
from services.registry.encoding import encoded
from services.registry.event_feed import Event, EventCaller, EventFeed
from services.registry.event_webhooks import EventWebhooks, WebhookTargets
from services.registry.failures import Places, store_failures
from services.registry.files import StoredFile, find_file
from services.registry.registry_access import RegistryAccess

logger = logging.getLogger("flambeau.registry")

THREADS = 4
"""Calls that read or write the store at once."""
MAX_WAITING = 128
"""Calls that read, write or wait for a thread."""
EVENT_WORK_AT_ONCE = 2
"""Reads of the event feed at once, and reads and writes of webhooks; others wait."""
COLLECT_EVERY_S = 600.0
"""Interval of removing abandoned uploads; they are kept for a day."""
PIECE_BYTES = 2**20
"""Bytes of a file that are read at once."""
CHUNK_BYTES = 8 * 2**20
"""Limit of a chunk of a file, in one request."""
MAX_MOVES_READ = 1000
"""Moves that a call reads to find those of a time: up to half a minute of a bucket."""

T = TypeVar("T")
Encode = Callable[[dict[str, Any]], bytes]
"""Encodes a document, in a thread."""


class Registry:
    """The registry of one store.

    Args:
        store: the store.
        uploads: uploads into it; None where it takes none.
        access: permissions.
        is_served: tells if this server holds a version: it serves it, is loading it, or unloaded it
            to make room.
        callers: recent callers, whom a refusal of a breaking version names; None to name none.
        scan_every_s: seconds between scans for events; None for the usual interval of the store.
        webhooks: webhooks that are told of events; None for none.

    Attributes:
        access: permissions.
        feed: events of the store.
    """

    def __init__(
        self,
        store: ModelStore,
        uploads: Uploads | None,
        access: RegistryAccess,
        is_served: Callable[[str, int], bool],
        callers: DeploymentCallers | None = None,
        scan_every_s: float | None = None,
        webhooks: WebhookTargets | None = None,
    ) -> None:
        self._store = store
        self._uploads = uploads
        self.access = access
        self._is_served = is_served
        places = {store.url: "the store"}
        if uploads is not None:
            places[str(uploads.folder)] = "the folder of the uploads"
        self._places = Places(places)
        self.feed = EventFeed(store, self._in_turn(EVENT_WORK_AT_ONCE), scan_every_s)
        self._webhooks = None
        if webhooks is not None:
            in_turn = self._in_turn(EVENT_WORK_AT_ONCE)
            self._webhooks = EventWebhooks(self.feed, store.storage, webhooks, in_turn)
        self._callers = callers
        self._waiting = 0
        self._threads = ThreadPoolExecutor(
            THREADS, "registry", lambda: lower_priority(STEPS_BELOW_LOOP)
        )

    async def run(self) -> None:
        """Removes abandoned uploads, and follows the events of the store, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._collect(), name="uploads")
            tasks.create_task(self.feed.run(), name="events")
            if self._webhooks is not None:
                tasks.create_task(self._webhooks.run(), name="webhooks")

    async def _collect(self) -> None:
        while self._uploads is not None:
            try:
                await self._in_thread(self._uploads.collect)
            except (OSError, ServingError) as error:
                logger.warning("abandoned uploads stay", extra={"reason": str(error)})
            await asyncio.sleep(COLLECT_EVERY_S)

    def close(self) -> None:
        """Ends the threads, once their present work is done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def models(
        self, principal: Principal, after: str, limit: int, encode: Encode = encoded
    ) -> bytes:
        """Lists models; see `documents.models_page`."""

        def sees(model: str) -> bool:
            return self.access.sees(principal, model)

        return await self._in_thread(
            lambda: encode(documents.models_page(self._store, sees, after, limit))
        )

    async def model(
        self,
        principal: Principal,
        model: str,
        before: int | None,
        limit: int,
        encode: Encode = encoded,
    ) -> bytes:
        """Describes a model and a page of its versions; see `documents.model_document`."""
        self.require(principal, "read", model)
        return await self._in_thread(
            lambda: encode(documents.model_document(self._store, model, before, limit))
        )

    async def version(
        self, principal: Principal, model: str, version: str, encode: Encode = encoded
    ) -> bytes:
        """Describes a version, by its number or an alias; see `documents.version_document`."""
        self.require(principal, "read", model)

        def read() -> bytes:
            number = documents.version_number(self._store, model, version)
            return encode(documents.version_document(self._store, model, number))

        return await self._in_thread(read)

    async def history(
        self,
        principal: Principal,
        model: str,
        before: int | None,
        limit: int,
        encode: Encode = encoded,
    ) -> bytes:
        """Lists the moves of a model's aliases; see `documents.history_document`."""
        self.require(principal, "read", model)
        return await self._in_thread(
            lambda: encode(documents.history_document(self._store, model, before, limit))
        )

    async def aliases_at(
        self, principal: Principal, model: str, at: str, encode: Encode = encoded
    ) -> bytes:
        """Describes the aliases of a model at a time (ISO 8601); see `state_document`.

        Raises:
            InvalidRequestError: it is no time, or lies before the newest `MAX_MOVES_READ` moves.
        """
        self.require(principal, "read", model)
        try:
            when = parse_time(at)
        except ValueError as error:
            raise InvalidRequestError(f"'at': {error}") from error

        def read() -> bytes:
            pointers = pointers_when(self._store, model, when, MAX_MOVES_READ)
            return encode(state_document(model, when, pointers))

        return await self._in_thread(read)

    async def open_file(
        self, principal: Principal, model: str, version: str, file: str
    ) -> StoredFile:
        """Finds a file of a version: one that the manifest names, the manifest, or the signature.

        Raises:
            NotFoundError: there is no such file.
        """
        with audited("download", f"{model}/{version}/{file}", principal.name, principal.peer):
            self.require(principal, "read", model)
            found = await self._in_thread(lambda: find_file(self._store, model, version, file))
            if found is None:
                raise NotFoundError(
                    f"'{file[:128]}' is no file of {model} {version[:20]}; its manifest names "
                    f"them, and there are {MANIFEST} and perhaps {SIGNATURE}"
                )
        return found

    async def read(self, file: StoredFile, start: int, end: int) -> AsyncIterator[bytes]:
        """Yields the bytes of a file from `start` to before `end`, in pieces.

        Raises:
            ServingError: the store failed, or the file is shorter than its manifest says.
        """
        while start < end:
            size, at = min(PIECE_BYTES, end - start), start
            data = await self._in_thread(lambda: self._store.storage.get_part(file.path, at, size))  # noqa: B023
            if not data:
                raise NotFoundError(f"{file.path} ends at {start:,} bytes; verify the version")
            start += len(data)
            yield data

    def events(self, principal: Principal, after: str) -> AsyncGenerator[Event | None, None]:
        """Reads the events of models that the caller may read; see `EventFeed.read`.

        Raises:
            ForbiddenError: the registry needs a credential.
        """
        if principal.caller is None:
            self.access.require(principal, "read", "")
        caller = EventCaller(
            principal.name or principal.peer,
            lambda model: self.access.reads(principal, model),
            lambda: principal.caller is not None and principal.caller.is_over(),
        )
        return self.feed.read(caller, after)

    async def annotate(
        self,
        principal: Principal,
        model: str,
        version: int | None,
        description: str | None,
        tags: dict[str, str | None] | None,
    ) -> dict[str, Any]:
        """Changes description and tags of a version, or of the model for None."""
        target = model if version is None else f"{model}/{version}"

        def change() -> dict[str, Any]:
            store = self._store
            if version is None:
                store.versions(model)
            else:
                store.manifest(model, version)
            noted = annotate(store.storage, model, version, who_of(principal), description, tags)
            return noted.model_dump(mode="json")

        with audited("annotate", target, principal.name, principal.peer):
            self.require(principal, "push", model)
            return await self._in_thread(change)

    async def delete(
        self, principal: Principal, model: str, version: int, why: str
    ) -> dict[str, Any]:
        """Deletes a version that no alias names and this server does not serve."""
        target = f"{model}/{version}"
        with audited("delete", target, principal.name, principal.peer, why):
            self.require(principal, "delete", model)
            check_why(why)
            if self._is_served(model, version):
                raise ConflictError(
                    f"version {version} of '{model}' is served here, as a version that an alias "
                    "names or one of the newest (newest_versions); publish or promote others first"
                )
            tombstone = await self._in_thread(
                lambda: delete_version(self._store, model, version, who_of(principal), why)
            )
        return tombstone.model_dump(mode="json")

    async def begin(
        self, principal: Principal, read: Callable[[Callable[[], None]], Declaration]
    ) -> dict[str, Any]:
        """Begins or resumes an upload.

        Args:
            principal: the caller.
            read: reads the declaration, and calls its argument between slices of the work.
        """
        if principal.caller is None:  # refused before its body is read
            self.access.require(principal, "push", "")
        declaration = await self._in_thread(lambda: read(lend_lock), of_caller=True)
        target = f"{declaration.model}/{declaration.version}"
        with audited("begin push", target, principal.name, principal.peer):
            self.require(principal, "push", declaration.model)
            uploads = self._writable()
            state = await self._in_thread(
                lambda: uploads.begin(declaration, owner_of(principal)), of_caller=True
            )
        return documents.upload_document(state)

    async def upload(self, principal: Principal, upload_id: str) -> dict[str, Any]:
        """Returns the state of an upload of this caller."""
        return documents.upload_document(await self._own(principal, upload_id))

    async def own_uploads(self, principal: Principal, encode: Encode = encoded) -> bytes:
        """Lists the open uploads of this caller, the newest first; see `Uploads.of_owner`.

        Those of models that it may no longer push are among them: they take its places.
        """
        if principal.caller is None:
            self.access.require(principal, "push", "")
        uploads = self._writable()

        def read() -> bytes:
            found = uploads.of_owner(owner_of(principal), lend_lock)
            return encode({"uploads": list(map(documents.open_upload_document, found))})

        return await self._in_thread(read)

    async def append(
        self,
        principal: Principal,
        upload_id: str,
        file: str,
        offset: int,
        data: bytes | memoryview,
    ) -> dict[str, Any]:
        """Appends bytes to a file of an upload; see `Uploads.append`."""
        uploads = self._writable()

        def check(model: str) -> None:
            self.require(principal, "push", model)

        size = await self._in_thread(
            lambda: uploads.append(upload_id, owner_of(principal), file, offset, data, check)
        )
        return {"file": file, "received": size}

    async def finish(self, principal: Principal, upload_id: str, why: str) -> dict[str, Any]:
        """Checks an upload and publishes its version; see `Uploads.finish`.

        Of a pipeline, the caller may read each model that it runs, or else its callers would get
        answers of a model that is not theirs.
        """
        declaration = (await self._own(principal, upload_id)).declaration
        target = f"{declaration.model}/{declaration.version}"
        with audited("push", target, principal.name, principal.peer, why):
            self.require(principal, "push", declaration.model)
            check_why(why)
            uploads = self._writable()

            def check_part(model: str) -> None:
                self.require(principal, "read", model)

            def publish() -> CopyReport:
                pushed = PushRecord(who=who_of(principal), when=datetime.now(UTC), why=why)
                return uploads.finish(upload_id, owner_of(principal), check_part, pushed)[1]

            report = await self._in_thread(publish, of_caller=True)

            def what_breaks() -> str:
                version = self._store.manifest(declaration.model, declaration.version)
                return broken_callers_of_production(self._store, version)

            breaks = await self._in_thread(what_breaks)
        return {
            "model": declaration.model,
            "version": declaration.version,
            "is_published": True,
            "files": report.files_copied + report.files_skipped,
            "breaks": breaks,
        }

    async def abandon(self, principal: Principal, upload_id: str) -> None:
        """Removes an upload of this caller, even of a model that it may no longer push."""
        if principal.caller is None:
            self.access.require(principal, "push", "")
        uploads, owner = self._writable(), owner_of(principal)
        declaration = (await self._in_thread(lambda: uploads.state(upload_id, owner))).declaration
        target = f"{declaration.model}/{declaration.version}"
        with audited("abandon push", target, principal.name, principal.peer):
            await self._in_thread(lambda: uploads.abandon(upload_id, owner))

    async def _own(self, principal: Principal, upload_id: str) -> UploadState:
        """Returns the state of an upload, whose model the caller may still push."""
        uploads = self._writable()
        state = await self._in_thread(lambda: uploads.state(upload_id, owner_of(principal)))
        self.require(principal, "push", state.declaration.model)
        return state

    def require(self, principal: Principal, scope: Scope, model: str, alias: str = "") -> None:
        """Checks the name of a model, which becomes a part of paths, and the caller's scope on it.

        Raises:
            UnknownModelError: it cannot be a name.
            ServingError: as `RegistryAccess.require`.
        """
        if not is_name(model):
            raise UnknownModelError(f"model {model[:128]!r} is not in the registry")
        self.access.require(principal, scope, model, alias)

    def may(self, principal: Principal, scope: Scope, model: str, alias: str = "") -> bool:
        """Returns True if a caller has a scope on a model, and on an alias if one is named."""
        return self.access.may(principal, scope, model, alias)

    async def on_store(
        self,
        principal: Principal,
        scope: Scope,
        model: str,
        alias: str,
        work: Callable[[ModelStore, str], T],
    ) -> T:
        """Runs blocking work, which gets the store and the caller's name for histories.

        Raises:
            ServingError: the caller lacks the scope on the model, or the work failed.
        """
        self.require(principal, scope, model, alias)
        try:
            return await self._in_thread(lambda: work(self._store, who_of(principal)))
        except ConflictError as error:
            broken, callers = error.__cause__, self._callers
            if callers is None or not isinstance(broken, BreakingVersionError):
                raise
            said = await callers.broken_by(model, broken.live, broken.version, self._in_thread)
            raise ConflictError(f"{error}; {said}" if said else str(error)) from broken

    def _writable(self) -> Uploads:
        if self._uploads is None:
            raise UnsupportedError(NO_UPLOADS)
        return self._uploads

    async def _in_thread(self, work: Callable[[], T], *, of_caller: bool = False) -> T:
        """Runs blocking work in a thread.

        Raises:
            OverloadedError: `MAX_WAITING` calls wait already.
            ServingError: the work raised a `StoreError`.
        """
        if self._waiting >= MAX_WAITING:
            raise OverloadedError(
                f"{MAX_WAITING} calls of the registry are waiting for the store; try again"
            )
        self._waiting += 1
        try:
            return await self._run(work, of_caller=of_caller)
        finally:
            self._waiting -= 1

    def _in_turn(self, at_once: int) -> Callable[[Callable[[], Any]], Awaitable[Any]]:
        """Returns a function that runs work in a thread, once few others of it run."""
        turns = asyncio.Semaphore(at_once)

        async def in_turn(work: Callable[[], Any]) -> Any:
            async with turns:
                return await self._run(work)

        return in_turn

    async def _run(self, work: Callable[[], T], *, of_caller: bool = False) -> T:
        with store_failures(self._places, of_caller=of_caller):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
