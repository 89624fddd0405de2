"""Requests for the live versions of models in the last hour, by caller.

In: requests that admission has taken by this process. Out: per model and caller the kinds of
requests, for the refusal of a version that breaks callers (`deployment_callers.py`).

Rules:
- a request costs one count; at most one in `LOOK_EVERY_S` of a caller and model is looked at, and
  those until the next look count as its kind;
- callers, kinds and models are limited: callers beyond the limit share one entry, and a new kind
  replaces the one that was seen longest ago.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensor_spec import MAX_RANK

WINDOW_S = 3600.0
"""Time after which a request is forgotten."""
SLOT_S = 300.0
"""Resolution of the window."""
LOOK_EVERY_S = 0.1
"""A look costs some 5 µs, so 32 callers of a model cost 0.2 % of a core; every 50 ms twice that
(`python -m bench.registry.recent_callers`)."""
MAX_CALLERS = 32
"""Callers of a model that have an entry each."""
MAX_KINDS = 4
"""Kinds of requests of a caller and model."""
MAX_MODELS = 256
"""Models whose requests are counted."""
ANONYMOUS = "anonymous"
"""Name of callers without a credential."""
OTHERS = "other callers"
"""Name of the entry that callers beyond `MAX_CALLERS` share; no credential has such a name."""
_SLOTS = int(WINDOW_S / SLOT_S)

MAX_CALLER_NAME = 256
"""Characters of the name of a caller; a token's may have thousands."""

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Shape = Annotated[tuple[Annotated[int, Meta(ge=-1)], ...], Meta(max_length=MAX_RANK)]
SentInput = tuple[Name, Name, Shape]
"""Name, datatype, and shape in the signature that the request was admitted for."""


class SentKind(NamedTuple):
    """Requests of a caller with the same inputs and outputs."""

    inputs: tuple[SentInput, ...]
    outputs: tuple[Name, ...]
    """Names of the outputs that are asked for, sorted; empty for all."""
    is_step: bool
    """True for steps of sequences."""
    smallest: tuple[Shape, ...]
    """Smallest size of each axis, by input."""
    largest: tuple[Shape, ...]
    times: Annotated[int, Meta(ge=1, le=2**53)]
    """Approximate number of them."""

    @property
    def key(self) -> "KindKey":
        """Key of the kind: requests of equal keys are of one kind."""
        return self.inputs, self.outputs, self.is_step


KindKey = tuple[tuple[SentInput, ...], tuple[str, ...], bool]


class SeenCaller(NamedTuple):
    """A caller of a model in the last hour."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_CALLER_NAME)]
    kinds: Annotated[tuple[SentKind, ...], Meta(min_length=1, max_length=MAX_KINDS)]


_Shapes = tuple[tuple[int, ...], ...]


class _Kind:
    __slots__ = ("_newest", "largest", "smallest", "times")

    def __init__(self, shapes: _Shapes) -> None:
        self.smallest = self.largest = self._newest = shapes
        self.times: dict[int, int] = {}

    def add(self, shapes: _Shapes, slot: int) -> None:
        """Adds a request."""
        if shapes != self._newest:
            self._newest = shapes
            self._widen(shapes)
        self.count(1, slot)

    def _widen(self, shapes: _Shapes) -> None:
        pairs = zip(self.smallest, shapes, strict=True)
        self.smallest = tuple([tuple(map(min, old, new)) for old, new in pairs])
        pairs = zip(self.largest, shapes, strict=True)
        self.largest = tuple([tuple(map(max, old, new)) for old, new in pairs])

    def count(self, times: int, slot: int) -> None:
        """Counts requests of a slot of time."""
        if slot not in self.times:
            self.times = {s: n for s, n in self.times.items() if s > slot - _SLOTS}
        self.times[slot] = self.times.get(slot, 0) + times


class _Caller:
    __slots__ = ("kinds", "next_look_at", "seen_at", "uncounted")

    def __init__(self) -> None:
        self.uncounted = 0
        self.next_look_at = self.seen_at = 0.0
        self.kinds: dict[KindKey, _Kind] = {}
        """That of the newest look is the last."""


class RecentCallers:
    """Counts the requests of callers of one process."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, _Caller]] = {}
        self._next_sweep_at = 0.0
        self._signature: Signature | None = None
        self._declared: dict[str, tuple[int, ...]] = {}
        """Shapes of the inputs of the signature, which is that of the newest look."""

    def is_due(self, model: str, caller: str, now: float) -> bool:
        """Counts a request; returns True if it is to be looked at.

        Args:
            model: the model's name.
            caller: name of the caller; empty for none.
            now: `time.monotonic()` second.
        """
        callers = self._models.get(model)
        if callers is None:
            return True
        one = callers.get(caller or ANONYMOUS) or callers.get(OTHERS)
        if one is None:
            return True
        one.uncounted += 1
        return now >= one.next_look_at

    def look(
        self,
        model: str,
        caller: str,
        inputs: Sequence[tuple[str, str, tuple[int, ...]]],
        outputs: Sequence[str],
        *,
        is_step: bool,
        signature: Signature,
        now: float,
    ) -> None:
        """Looks at a request that fits its model's signature.

        Args:
            model: the model's name.
            caller: name of the caller; empty for none.
            inputs: name, datatype and full shape of each.
            outputs: names of those that are asked for; empty for all.
            is_step: True for a step of a sequence.
            signature: signature of the version that it was admitted for.
            now: `time.monotonic()` second.
        """
        one = self._caller(model, caller or ANONYMOUS, now)
        if one is None:
            return
        if signature is not self._signature:
            self._signature = signature
            self._declared = {spec.name: tuple(spec.shape) for spec in signature.inputs}
        declared = self._declared
        given = sorted(inputs) if len(inputs) > 1 else inputs
        shapes = tuple([shape for _, _, shape in given])
        key = (
            tuple([(name, datatype, declared[name]) for name, datatype, _ in given]),
            tuple(sorted(outputs)),
            is_step,
        )
        if one.kinds:
            _newest(one).count(one.uncounted - 1, int(one.seen_at // SLOT_S))
        kind = one.kinds.pop(key, None) or _Kind(shapes)
        if len(one.kinds) >= MAX_KINDS:
            del one.kinds[next(iter(one.kinds))]
        one.kinds[key] = kind
        kind.add(shapes, int(now // SLOT_S))
        one.uncounted, one.seen_at, one.next_look_at = 0, now, now + LOOK_EVERY_S

    def _caller(self, model: str, name: str, now: float) -> _Caller | None:
        """Returns the entry of a caller, perhaps a new one; None beyond `MAX_MODELS`."""
        callers = self._models.get(model)
        if callers is None:
            if len(self._models) >= MAX_MODELS and now >= self._next_sweep_at:
                self._next_sweep_at = now + SLOT_S
                kept = {key: _recent(found, now) for key, found in self._models.items()}
                self._models = {key: found for key, found in kept.items() if found}
            if len(self._models) >= MAX_MODELS:
                return None
            callers = self._models[model] = {}
        if (one := callers.get(name)) is not None:
            return one
        if len(callers) >= MAX_CALLERS:
            callers = self._models[model] = _recent(callers, now)
        if len(callers) >= MAX_CALLERS:
            name = OTHERS
        one = callers.get(name)
        if one is None:
            one = callers[name] = _Caller()
            one.uncounted = 1
        return one

    def models(self) -> tuple[str, ...]:
        """Returns the models whose callers are counted."""
        return tuple(self._models)

    def seen(self, model: str, now: float | None = None) -> tuple[SeenCaller, ...]:
        """Returns the callers of a model in the last hour; takes up to 0.5 ms.

        Args:
            model: the model's name.
            now: `time.monotonic()` second; None for the present.
        """
        slot = int((time.monotonic() if now is None else now) // SLOT_S)
        callers = self._models.get(model, {})
        found = [SeenCaller(_plain(name), _sent(one, slot)) for name, one in callers.items()]
        return tuple(one for one in found if one.kinds)


def _recent(callers: Mapping[str, _Caller], now: float) -> dict[str, _Caller]:
    return {name: one for name, one in callers.items() if one.seen_at > now - WINDOW_S}


def _newest(caller: _Caller) -> _Kind:
    return next(reversed(caller.kinds.values()))


def _plain(name: str) -> str:
    """Returns a name of limited length whose characters are printable."""
    name = name[:MAX_CALLER_NAME]
    if name.isprintable():
        return name
    return "".join(one if one.isprintable() else "?" for one in name)


def _sent(caller: _Caller, slot: int) -> tuple[SentKind, ...]:
    found = []
    if caller.kinds:
        _newest(caller).count(caller.uncounted, int(caller.seen_at // SLOT_S))
        caller.uncounted = 0
    for key, kind in caller.kinds.items():
        times = sum(count for at, count in kind.times.items() if at > slot - _SLOTS)
        if times:
            found.append(SentKind(*key, kind.smallest, kind.largest, times))
    return tuple(found)
