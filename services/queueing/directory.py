"""Which versions are served, and which one a request without a version gets.

In: announcements by inference. Out: the `ServedVersion` a gateway may send a request to. One
event loop owns it, so a request that was resolved and enqueued without an `await` between can
never meet a lane that has been withdrawn.
"""

import time
from collections.abc import Iterable, Iterator

from model_store.signature import Signature
from model_store.strict import nearest_name
from services.errors import ModelNotReadyError, UnknownModelError, UnknownVersionError
from services.queueing.records import Lane, ServedVersion

FEW_MODELS = 32
"""Served, among which a wrong name is always told its nearest: to compare them takes 0.2 ms."""
HINT_PART = 50
"""Among more, such a hint is followed by as many times its own time without one: 5 ms each, for
1,000 models, would hold the event loop as often as strangers ask."""


class Directory:
    """The served versions by model, and the live one of each."""

    def __init__(self) -> None:
        self._served: dict[str, dict[int, ServedVersion]] = {}
        self._live: dict[str, int] = {}
        self.complete = True
        """Whether all that is served has been announced once: until then nothing is unknown. A
        process that starts says so, for as long as it does."""
        self.is_discreet = False
        """Whether callers may be told no names but those they asked for: not all are for all."""
        self._next_hint_at = 0.0
        self._missed: set[Lane] = set()
        self._resolved: dict[tuple[str, str], tuple[ServedVersion, Signature]] = {}
        """What `resolve` has found since the last change; only names that are served."""

    def announce(self, served: ServedVersion) -> None:
        """Adds a version or replaces what is known about it."""
        self._served.setdefault(served.lane.model, {})[served.lane.version] = served
        self._resolved.clear()

    def withdraw(self, lane: Lane) -> None:
        """Forgets a version; no request reaches it any more."""
        self._resolved.clear()
        versions = self._served.get(lane.model, {})
        versions.pop(lane.version, None)
        if self._live.get(lane.model) == lane.version:
            del self._live[lane.model]
        if not versions:
            self._served.pop(lane.model, None)

    def is_missed(self, lane: Lane) -> bool:
        """Whether a version should be loaded: it never was, or was asked for since it left."""
        served = self._served.get(lane.model, {}).get(lane.version)
        if served is None or served.state != "unloaded":
            return True
        missed = lane in self._missed
        self._missed.discard(lane)
        return missed

    def make_live(self, lane: Lane) -> None:
        """Sends requests without a version to this one from now on."""
        self._live[lane.model] = lane.version
        self._resolved.clear()

    def live_version(self, model: str) -> int | None:
        """The version a request without one gets, or None while there is none."""
        return self._live.get(model)

    def are_live(self, models: Iterable[str]) -> bool:
        """Whether each of them has a version that a request without one gets."""
        return all(model in self._live for model in models)

    def refused(self) -> dict[str, str]:
        """Models that nobody can be answered for, because versions were refused: why."""
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
        """Everything announced, models and versions in order."""
        for _, versions in sorted(self._served.items()):
            yield from (served for _, served in sorted(versions.items()))

    def versions(self, model: str) -> list[int]:
        """The ready versions of a model, ascending.

        Raises:
            UnknownModelError: no such model.
        """
        return sorted(v for v, served in self._of(model).items() if served.state == "ready")

    def served_lane(self, model: str, version: str = "") -> Lane | None:
        """The served version that a name means, or None: what `find` refuses, without words."""
        versions = self._served.get(model, {})
        if not version:
            served = versions.get(self._live.get(model, 0))
        else:
            served = next((s for number, s in versions.items() if str(number) == version), None)
        return served.lane if served is not None else None

    def find(self, model: str, version: str = "") -> ServedVersion:
        """The version a name means, whatever its state.

        Args:
            model: the model's name.
            version: a whole number as text, or empty for the live one.

        Raises:
            UnknownModelError: no such model.
            UnknownVersionError: not a served version.
            ModelNotReadyError: no version was named and none is live.
        """
        versions = self._of(model)
        if not version:
            live = self._live.get(model)
            if live is None:
                raise ModelNotReadyError(f"model '{model}' is not ready: {_reasons(versions)}")
            return versions[live]
        served = next((s for number, s in versions.items() if str(number) == version), None)
        if served is None:
            raise UnknownVersionError(
                f"model '{model}' has no served version '{version}'; "
                f"served: {', '.join(map(str, sorted(versions)))}"
            )
        return served

    def resolve(self, model: str, version: str = "") -> tuple[ServedVersion, Signature]:
        """The ready version a name means, and its signature.

        Raises:
            UnknownModelError, UnknownVersionError: as `find`.
            ModelNotReadyError: it is loading or was refused; the message says why.
        """
        found = self._resolved.get((model, version))
        if found is not None:
            return found
        served = self.find(model, version)
        if served.state != "ready" or served.signature is None:
            if served.state == "unloaded":
                self._missed.add(served.lane)
            raise ModelNotReadyError(
                f"model {served.lane} is not ready: {served.reason or served.state}"
            )
        found = self._resolved[model, version] = served, served.signature
        return found

    def _of(self, model: str) -> dict[int, ServedVersion]:
        versions = self._served.get(model)
        if versions is None and not self.complete:
            raise ModelNotReadyError(
                f"model '{model}' is not ready: this server is starting; try again"
            )
        if versions is None:
            hint = "" if self.is_discreet else self._hint(model)
            raise UnknownModelError(f"model '{model}' is not served{hint}")
        return versions

    def _hint(self, model: str) -> str:
        """The nearest name; none where it would take more than a part of the loop's time."""
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
