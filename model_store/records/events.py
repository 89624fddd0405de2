"""Events of a store: versions, moves of aliases and traffic, requests, deletions, annotations.

In: the files of a store, and the times of their arrival. Out: events, in the order of their ids.

Rules:
- the store alone says what happened: an event is a manifest, a generation of pointers, a request
  for a move, a tombstone or annotations, whoever wrote them; all servers of a store tell the same
  events by the same ids;
- an id begins with the time of arrival, so that ids order events, and one can be gone on from;
- of a deleted version only its deletion is told, and of annotations only the newest.
"""

import bisect
import heapq
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from flambeau.protocol.names import is_name
from model_store.approvals.move_request import request_of
from model_store.errors import (
    DocumentError,
    ManifestError,
    StorageError,
    StoreError,
    TooLargeError,
    UnknownRequestError,
)
from model_store.listing import model_names
from model_store.manifest import MANIFEST
from model_store.pointers import Pointers
from model_store.records.annotations import annotations_of
from model_store.records.moves import Change, changes_between
from model_store.records.push_record import publisher_of
from model_store.records.tombstone import tombstone_of
from model_store.rollouts.traffic import Split, Traffic
from model_store.storage.storage import MissingFileError
from model_store.store import ModelStore

Record = Literal["annotations", "manifest", "pointers", "request", "tombstone"]
RECORDS: tuple[Record, ...] = ("annotations", "manifest", "pointers", "request", "tombstone")
_FOLDERS: dict[str, Record] = {
    "annotations": "annotations",
    "pointers": "pointers",
    "requests": "request",
    "tombstones": "tombstone",
}
_NUMBER = re.compile(r"[0-9]{1,9}")
_ID = re.compile(r"([0-9]{16})\.([a-z]+)\.([0-9]{1,9})\.(.+)")
_AFTER = re.compile(r"[0-9]{1,16}|[0-9]{16}\.[A-Za-z0-9._-]{1,160}")
MAX_KEPT = 10_000
"""Newest events of a store that are told again."""
MOST_INSERTED = 256
"""Changes that are inserted one by one; for more, all events are merged. Neither holds the
interpreter lock for long, as sorting 10,000 events does (27 ms)."""
QUIET_S = 2.0
"""Age of a folder's last change from which its listing is final: times of files are coarse."""


class StoredEvent(NamedTuple):
    """One event; tuples order events as their ids do."""

    at_us: int
    """Time of arrival, in microseconds of Unix time."""
    record: Record
    number: int
    """The version, the generation of pointers, or the request; 0 for annotations of the model."""
    model: str

    @property
    def id(self) -> str:
        """The event's id, the same at all servers."""
        return f"{self.at_us:016d}.{self.record}.{self.number}.{self.model}"


def event_of(event_id: str) -> StoredEvent | None:
    """Returns the event that an id names, whether or not a store has it; None if it is none."""
    found = _ID.fullmatch(event_id)
    if found is None or not is_name(found[4]):
        return None
    record = next((one for one in RECORDS if one == found[2]), None)
    return None if record is None else StoredEvent(int(found[1]), record, int(found[3]), found[4])


def first_after(after: str) -> StoredEvent:
    """Returns the least event that may follow an id, or a time in microseconds of Unix time.

    Raises:
        ValueError: it is neither.
    """
    if _AFTER.fullmatch(after) and after.isdecimal():
        return StoredEvent(int(after), "annotations", -1, "")
    found = event_of(after)
    if found is None:
        raise ValueError(
            f"'after' is '{after[:80]}'; give the id of an event, 0 for all that are kept, or "
            "leave it out for those from now on"
        )
    return found._replace(model=found.model + "\0")


class EventScan:
    """Finds the events of a store, and reads again only folders that have changed.

    Args:
        store: the store.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._models: dict[str, _ModelScan] = {}
        self._by_model: Mapping[str, Collection[StoredEvent]] = {}
        self._sorted: list[StoredEvent] = []
        self._newest: list[StoredEvent] = []

    def events(self) -> list[StoredEvent]:
        """Returns the newest `MAX_KEPT` events that the store has now, in order.

        Raises:
            StorageError: it cannot be listed, or its folder is gone.
        """
        storage = self._store.storage
        if not storage.is_local:
            return self._ordered(_found_in_bucket(self._store))
        storage.check_there()
        self._models = {
            name: self._models.get(name) or _ModelScan(name) for name in model_names(storage)
        }
        now_s = datetime.now(UTC).timestamp()
        for scan in self._models.values():
            scan.look(self._store, now_s)
        storage.check_there()  # it may have gone meanwhile: then its events only seem to be gone
        return self._ordered({name: scan.events() for name, scan in self._models.items()})

    def _ordered(self, by_model: Mapping[str, Collection[StoredEvent]]) -> list[StoredEvent]:
        """Returns the newest events of all models; the same list if none has changed."""
        changes: set[StoredEvent] = set()
        for name in self._by_model.keys() | by_model.keys():
            before, now = self._by_model.get(name, ()), by_model.get(name, ())
            if before is not now:
                changes |= set(before) ^ set(now)
        self._by_model = by_model
        if not changes:
            return self._newest
        if len(changes) > MOST_INSERTED:
            self._sorted = list(heapq.merge(*map(sorted, by_model.values())))
        else:
            for event in changes:
                place = bisect.bisect_left(self._sorted, event)
                if self._sorted[place : place + 1] == [event]:
                    del self._sorted[place]
                else:
                    self._sorted.insert(place, event)
        self._newest = self._sorted[-MAX_KEPT:]
        return self._newest


class _ModelScan:
    """The state of one model between scans of a folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._changed: dict[str, float] = {}
        self._by_folder: dict[str, set[StoredEvent]] = {}
        self._published: dict[int, StoredEvent] = {}
        self._claimed: set[int] = set()
        self._told: frozenset[StoredEvent] | None = None

    def events(self) -> frozenset[StoredEvent]:
        """Returns the events of the model; the same set if none has changed."""
        if self._told is None:
            found = self._by_folder.values()
            self._told = _told(frozenset(self._published.values()).union(*found))
        return self._told

    def look(self, store: ModelStore, now_s: float) -> None:
        """Reads what has changed."""
        storage, name = store.storage, self.name
        if self._has_changed(store, name, now_s):
            self._told = None
            self._claimed = {int(n) for n in storage.names(name) if _NUMBER.fullmatch(n)}
            for gone in self._published.keys() - self._claimed:
                del self._published[gone]
        missing = len(self._claimed) > len(self._published)
        for version in self._claimed - self._published.keys() if missing else ():
            at_s = storage.changed_s(f"{name}/{version}/{MANIFEST}")
            if at_s is not None:
                self._told = None
                self._published[version] = _event(at_s, "manifest", version, name)
        for folder, record in _FOLDERS.items():
            if self._has_changed(store, f"{name}/{folder}", now_s):
                self._told = None
                self._by_folder[folder] = set(self._records(store, folder, record))

    def _has_changed(self, store: ModelStore, folder: str, now_s: float) -> bool:
        """Returns True unless the folder was listed after its last change."""
        at_s = store.storage.changed_s(folder)
        if at_s is None:  # it is not there yet, or the store is not
            self._changed.pop(folder, None)
            if self._by_folder.pop(folder.rpartition("/")[2], None) is not None:
                self._told = None
            return False
        if self._changed.get(folder) == at_s:
            return False
        self._changed.pop(folder, None)
        if now_s - at_s > QUIET_S:
            self._changed[folder] = at_s
        return True

    def _records(self, store: ModelStore, folder: str, record: Record) -> Iterator[StoredEvent]:
        for file in store.storage.names(f"{self.name}/{folder}"):
            number = _number_in(file)
            if number is None:
                continue
            at_s = store.storage.changed_s(f"{self.name}/{folder}/{file}")
            if at_s is not None:
                yield _event(at_s, record, number, self.name)


def _found_in_bucket(store: ModelStore) -> dict[str, frozenset[StoredEvent]]:
    """Returns the events of every model."""
    found: defaultdict[str, set[StoredEvent]] = defaultdict(set)
    for path, facts in store.storage.details("").items():
        match path.split("/"):
            case [model, folder, file] if is_name(model):
                if folder in _FOLDERS and (number := _number_in(file)) is not None:
                    found[model].add(_event(facts.changed_s, _FOLDERS[folder], number, model))
                elif file == MANIFEST and _NUMBER.fullmatch(folder):
                    found[model].add(_event(facts.changed_s, "manifest", int(folder), model))
    return {model: _told(frozenset(events)) for model, events in found.items()}


def _number_in(file: str) -> int | None:
    stem, _, ending = file.partition(".")
    if ending != "json":
        return None
    if stem == "model":
        return 0
    return int(stem) if _NUMBER.fullmatch(stem) else None


def _event(at_s: float, record: Record, number: int, model: str) -> StoredEvent:
    return StoredEvent(int(at_s * 1e6), record, number, model)


def _told(found: frozenset[StoredEvent]) -> frozenset[StoredEvent]:
    """Returns the events of a model without the arrival of deleted versions."""
    deleted = {one.number for one in found if one.record == "tombstone"}
    if not deleted:
        return found
    return frozenset(one for one in found if one.record != "manifest" or one.number not in deleted)


def event_document(store: ModelStore, event: StoredEvent) -> dict[str, Any] | None:
    """Describes an event; None if it tells nothing, or its record has gone meanwhile.

    Args:
        store: the store.
        event: an event of it.

    Raises:
        StorageError: the store cannot be read.
    """
    try:
        found = _DESCRIBE[event.record](store, event)
    except (MissingFileError, ManifestError, DocumentError, TooLargeError):
        return None
    if found is None:
        return None
    at = datetime.fromtimestamp(event.at_us / 1e6, UTC).isoformat()
    return {"id": event.id, "kind": "", "model": event.model, "version": None, "at": at, **found}


def _pushed(store: ModelStore, event: StoredEvent) -> dict[str, Any] | None:
    try:
        manifest = store.manifest(event.model, event.number)
    except StorageError:
        raise
    except StoreError:  # deleted meanwhile, or damaged
        return None
    return {
        "kind": "pushed",
        "version": event.number,
        "semver": manifest.semver,
        **publisher_of(store.storage, event.model, event.number),
    }


def _moved(store: ModelStore, event: StoredEvent) -> dict[str, Any] | None:
    pointers = store.pointers_at(event.model, event.number)
    before = store.pointers_at(event.model, event.number - 1) if event.number > 1 else None
    changes = changes_between(before.aliases if before else {}, pointers.aliases)
    if not changes:
        return _traffic_moved(before.traffic if before else Traffic(), pointers)
    return {
        "kind": _kind_of(changes),
        "version": changes[0].after,
        **_by(pointers),
        "generation": pointers.generation,
        "changes": [one.document() for one in changes],
    }


def _kind_of(changes: Sequence[Change]) -> str:
    if all(one.after is None for one in changes):
        return "alias_removed"
    went_back = all(
        one.before is not None and one.after is not None and one.after < one.before
        for one in changes
    )
    return "rolled_back" if went_back else "promoted"


def _traffic_moved(before: Traffic, pointers: Pointers) -> dict[str, Any] | None:
    """Describes a change of a rollout, a shadow or a split, which moves no alias."""
    now = pointers.traffic
    pairs = ((now.rollout, before.rollout), (now.shadow, before.shadow), (now.split, before.split))
    changed = next((after or was for after, was in pairs if after != was), None)
    if changed is None:
        return None
    return {
        "kind": "traffic",
        "version": None if isinstance(changed, Split) else changed.candidate,
        **_by(pointers),
        "generation": pointers.generation,
        "changes": [],
    }


def _by(pointers: Pointers) -> dict[str, str]:
    found = {"who": pointers.who, "why": pointers.why}
    return found if pointers.approval is None else {**found, "approved_by": pointers.approval.by}


def _deleted(store: ModelStore, event: StoredEvent) -> dict[str, Any] | None:
    found = tombstone_of(store.storage, event.model, event.number)
    if found is None:  # its deletion was taken back
        return None
    return {
        "kind": "deleted",
        "version": event.number,
        "semver": found.semver,
        "who": found.who,
        "why": found.why,
    }


def _annotated(store: ModelStore, event: StoredEvent) -> dict[str, Any] | None:
    noted = annotations_of(store.storage, event.model, event.number or None)
    return {"kind": "annotated", "version": event.number or None, "who": noted.who}


def _asked(store: ModelStore, event: StoredEvent) -> dict[str, Any] | None:
    try:
        found = request_of(store.storage, event.model, event.number)
    except UnknownRequestError:
        return None
    move = found.move
    started = move.rollout or move.shadow
    return {
        "kind": "asked",
        "version": move.version if started is None else started.version,
        "who": found.who,
        "why": move.why,
        "request": found.number,
        "act": move.act,
        "alias": move.alias,
        "until": found.until.isoformat(),
    }


_DESCRIBE = {
    "annotations": _annotated,
    "manifest": _pushed,
    "pointers": _moved,
    "request": _asked,
    "tombstone": _deleted,
}
