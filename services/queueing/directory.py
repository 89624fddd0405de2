"""Directory of the served versions, of the live version of each model, and of its traffic.

In: announcements by inference. Out: the `ServedVersion` that a gateway sends a request to. One
event loop owns it, so a request that was resolved and enqueued without an `await` between can
never reach a lane that has been withdrawn.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from flambeau.protocol.signature import Signature
from flambeau.protocol.strict import nearest_name
from model_store.rollouts.traffic import Traffic
from services.errors import (
    ModelNotReadyError,
    ModelReturningError,
    UnknownModelError,
    UnknownVersionError,
)
from services.queueing.records import Lane, ServedVersion

LIVE_ALIAS = "production"
"""The alias of the live version: its pointer may have moved to one that is not loaded yet."""
FEW_MODELS = 32
"""Models up to which an unknown name always gets a suggestion: comparing takes 0.2 ms."""
MAX_SHOWN = 200
"""Characters of a version's name in a message."""
HINT_PART = 50
"""With more models, a suggestion is followed by a pause of so many times its own duration: 5 ms
each, for 1,000 models, would let unauthenticated clients block the event loop."""


class Directory:
    """Holds the served versions by model, and the live one of each."""

    def __init__(self) -> None:
        self._served: dict[str, dict[int, ServedVersion]] = {}
        self._live: dict[str, int] = {}
        self._aliases: dict[str, dict[str, int]] = {}
        self._traffic: dict[str, Traffic] = {}
        self.complete = True
        """True once all served versions have been announced: until then no name is unknown. A
        starting process sets it to False."""
        self.is_discreet = False
        """True if messages must not reveal other names: not every caller may see all models."""
        self.unknown_words: Callable[[str, str], str] | None = None
        """Message for an unknown model, or version of a known one, in place of the own ones."""
        self._next_hint_at = 0.0
        self._missed: set[Lane] = set()
        self._resolved: dict[tuple[str, str], tuple[ServedVersion, Signature]] = {}
        """Cache of `resolve` since the last change; only served names."""
        self.changes = 0
        """Number of changes so far: callers that cache what they found look again after one."""
        self.changed: Callable[[], None] = lambda: None
        """Called after every change."""
        self.missing: Callable[[Lane, bool], None] | None = None
        """Called when a request needs a version that was unloaded, with True if one did before;
        None where nothing would load it."""
        self.settled: Callable[[Lane], None] = lambda _: None
        """Called when a version that made room is ready again, refused, or withdrawn."""
        self._returning: set[Lane] = set()
        """Versions that made room."""
        self._watchers: list[Callable[[], None]] = []

    def watch(self, call: Callable[[], None]) -> None:
        """Has something called after every change, too."""
        self._watchers.append(call)

    def announce(self, served: ServedVersion) -> None:
        """Adds or replaces a version."""
        self._served.setdefault(served.lane.model, {})[served.lane.version] = served
        self._changed()
        if served.comes_back:
            self._returning.add(served.lane)
        elif self._returning:
            self._settle(served.lane)

    def _settle(self, lane: Lane) -> None:
        if lane in self._returning:
            self._returning.discard(lane)
            self.settled(lane)

    def _changed(self) -> None:
        self.changes += 1
        self._resolved.clear()
        self.changed()
        for call in self._watchers:
            call()

    def withdraw(self, lane: Lane) -> None:
        """Removes a version; no further request reaches it."""
        self._changed()
        versions = self._served.get(lane.model, {})
        versions.pop(lane.version, None)
        if self._live.get(lane.model) == lane.version:
            del self._live[lane.model]
        if not versions:
            self._served.pop(lane.model, None)
            self._aliases.pop(lane.model, None)
            self._traffic.pop(lane.model, None)
        self._settle(lane)

    def is_missed(self, lane: Lane) -> bool:
        """Returns True if a version should load: it never was, or was requested since unloading."""
        if not self.is_unloaded(lane):
            return True
        missed = lane in self._missed
        self._missed.discard(lane)
        return missed

    def is_awaited(self, lane: Lane) -> bool:
        """Returns True if a version was requested since unloading; `is_missed` says it once."""
        return self.is_unloaded(lane) and lane in self._missed

    def is_unloaded(self, lane: Lane) -> bool:
        """Returns True if a version made room for others, and loads again once requested."""
        served = self._served.get(lane.model, {}).get(lane.version)
        return served is not None and served.state == "unloaded"

    def miss(self, lane: Lane) -> None:
        """Notes that a request needs a version that was unloaded."""
        is_known = lane in self._missed
        self._missed.add(lane)
        if self.missing is not None:
            self.missing(lane, is_known)

    def make_live(self, lane: Lane) -> None:
        """Makes a version the target of requests without a version."""
        self._live[lane.model] = lane.version
        self._changed()

    def is_decoupled(self, model: str, version: str = "") -> bool:
        """Returns True if a request may have any number of answers; False for unknown names."""
        found = self._resolved.get((model, version))
        if found is not None:
            return found[0].is_decoupled
        lane = self.served_lane(model, version)
        return lane is not None and self._served[lane.model][lane.version].is_decoupled

    def set_aliases(self, model: str, aliases: Mapping[str, int]) -> None:
        """Sets the version that each alias of a model names."""
        if self._aliases.get(model, {}) != aliases:
            self._aliases[model] = dict(aliases)
            self._changed()

    def aliases(self, model: str) -> Mapping[str, int]:
        """Returns the version that each alias of a model names."""
        return self._aliases.get(model, {})

    def set_traffic(self, model: str, traffic: Traffic | None) -> None:
        """Sets how a model's requests are shared among versions; None for all to the live one."""
        wanted = traffic or None
        if self._traffic.get(model) != wanted:
            if wanted is None:
                del self._traffic[model]
            else:
                self._traffic[model] = wanted
            self._changed()

    def traffic(self, model: str) -> Traffic | None:
        """Returns how a model's requests are shared; None if the live version gets all."""
        return self._traffic.get(model)

    def traffics(self) -> Mapping[str, Traffic]:
        """Returns the traffic by model, of those that have a rollout, a shadow or a split.

        It is the same mapping for the directory's whole life: a reader may keep it.
        """
        return self._traffic

    def live_version(self, model: str) -> int | None:
        """Returns the live version, or None while there is none."""
        return self._live.get(model)

    def are_live(self, models: Iterable[str]) -> bool:
        """Returns True if each of the models has a live version."""
        return all(model in self._live for model in models)

    def refused(self) -> dict[str, str]:
        """Returns models without any usable version, with the reasons of the refusals."""
        found = {}
        for model, versions in self._served.items():
            states = {served.state for served in versions.values()}
            live = versions.get(self._live.get(model, 0))
            if "failed" in states and (
                live.state == "failed" if live is not None else "loading" not in states
            ):
                found[model] = "; ".join(
                    f"version {number} was refused: {served.reason}"
                    for number, served in sorted(versions.items())
                    if served.state == "failed"
                )
        return found

    def all_versions(self) -> Iterator[ServedVersion]:
        """Yields all announced versions, models and versions in order."""
        for _, versions in sorted(self._served.items()):
            yield from (served for _, served in sorted(versions.items()))

    def of_model(self, model: str) -> list[ServedVersion]:
        """Returns the announced versions of a model, in any state; none if it is unknown."""
        return list(self._served.get(model, {}).values())

    def versions(self, model: str) -> list[int]:
        """Returns the ready versions of a model, ascending.

        Raises:
            UnknownModelError: no such model.
        """
        return sorted(v for v, served in self._of(model).items() if served.state == "ready")

    def served_lane(self, model: str, version: str = "") -> Lane | None:
        """Returns the lane of a served version, or None where `find` would raise."""
        served = self._named(model, version, self._served.get(model, {}))
        return served.lane if served is not None else None

    def _named(
        self, model: str, version: str, versions: Mapping[int, ServedVersion]
    ) -> ServedVersion | None:
        """Returns the version of a name, if there is one."""
        aliases = self._aliases.get(model, {})
        if not version or (version == LIVE_ALIAS and version in aliases):
            return versions.get(self._live.get(model, 0))
        served = next((s for number, s in versions.items() if str(number) == version), None)
        return versions.get(aliases.get(version, 0)) if served is None else served

    def find(self, model: str, version: str = "") -> ServedVersion:
        """Returns the version of a name, in any state.

        Args:
            model: the model's name.
            version: a whole number as text, an alias, or empty for the live one.

        Raises:
            UnknownModelError: no such model.
            UnknownVersionError: not a served version.
            ModelNotReadyError: no version was named and none is live.
        """
        versions = self._of(model)
        served = self._named(model, version, versions)
        if served is not None:
            return served
        known = self._aliases.get(model, {})
        if not version or (version == LIVE_ALIAS and version in known):
            raise ModelNotReadyError(f"model '{model}' is not ready: {_reasons(versions)}")
        if self.unknown_words is not None:
            raise UnknownVersionError(self.unknown_words(model, version))
        aliases = ", ".join(sorted(known))
        raise UnknownVersionError(
            f"model '{model}' has no served version '{version[:MAX_SHOWN]}'; "
            f"served: {', '.join(map(str, sorted(versions)))}"
            f"{f'; aliases: {aliases}' if aliases else ''}"
        )

    def resolve(self, model: str, version: str = "") -> tuple[ServedVersion, Signature]:
        """Returns the ready version of a name, and its signature.

        Raises:
            UnknownModelError, UnknownVersionError: as `find`.
            ModelReturningError: it made room for others, and is loaded again.
            ModelNotReadyError: it is loading or was refused; the message says why.
        """
        found = self._resolved.get((model, version))
        if found is not None:
            return found
        served = self.find(model, version)
        if served.state != "ready" or served.signature is None:
            if served.state == "unloaded":
                self.miss(served.lane)
            returns = served.comes_back and self.missing is not None
            error = ModelReturningError if returns else ModelNotReadyError
            raise error(f"model {served.lane} is not ready: {served.reason or served.state}")
        found = self._resolved[model, version] = served, served.signature
        return found

    def _of(self, model: str) -> dict[int, ServedVersion]:
        versions = self._served.get(model)
        if versions is None and not self.complete:
            raise ModelNotReadyError(
                f"model '{model}' is not ready: this server is starting; try again"
            )
        if versions is None:
            if self.unknown_words is not None:
                raise UnknownModelError(self.unknown_words(model, ""))
            hint = "" if self.is_discreet else self._hint(model)
            raise UnknownModelError(f"model '{model}' is not served{hint}")
        return versions

    def _hint(self, model: str) -> str:
        """Suggests the nearest name; none if that would take too much of the loop's time."""
        began = time.monotonic()
        if len(self._served) > FEW_MODELS and began < self._next_hint_at:
            return ""
        hint = nearest_name(model, self._served)
        ended = time.monotonic()
        self._next_hint_at = ended + HINT_PART * (ended - began)
        return hint


def _reasons(versions: dict[int, ServedVersion]) -> str:
    return "; ".join(
        f"version {number}: {served.reason or served.state}"
        for number, served in sorted(versions.items())
    )
