"""Merges the announcements of all workers into one view of served versions. Pure.

In: an announcement of each worker. Out: the versions gateways may send requests to, and which one
of each model is live.

Rules:
- a version is ready as soon as one worker has it ready;
- an artifact can be asked for as soon as one worker has it loaded beside its default one;
- where workers have chosen different default ones, all of them together count as one, as accurate
  and as fast as the worst of them; none of them has the name that it is known by;
- the traffic of a model is that of the newest pointers that a worker follows; while none has a
  live version of it, as when they restart, it is what any of them says, or unknown;
- a model switches to another version when every worker that serves the model has switched, or
  cannot: until then all of them keep the old one, and none is idle.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import msgspec

from flambeau.protocol.signature import Signature
from model_store.rollouts.traffic import Traffic
from services.queueing.records import Execution, Lane, ServedArtifact, ServedVersion

State = Literal["loading", "ready", "failed", "unloaded"]
_BY_RANK: tuple[State, ...] = ("ready", "loading", "unloaded", "failed")
"""The state of a version is the first of these that any worker gives it."""


class AnnouncedArtifact(msgspec.Struct, frozen=True, array_like=True):
    """A worker's announcement of one loaded artifact."""

    name: str
    precision: str
    accuracy_loss: float
    row_ms: float
    """Milliseconds a row at its best batch size, measured at load."""
    is_default: bool
    """True if it answers requests without an artifact."""
    row_s: float = 0.0
    """The value of `AnnouncedVersion`, for an artifact that is not the default."""


class AnnouncedVersion(msgspec.Struct, frozen=True, array_like=True):
    """A worker's announcement of one version."""

    model: str
    version: int
    state: State
    reason: str
    signature: str
    """JSON text; empty while the signature is unknown."""
    platform: str
    artifact: str
    row_s: float
    """Seconds by which each request that waits delays the next here; 0 if unknown."""
    artifacts: tuple[AnnouncedArtifact, ...] = ()
    """Those that are loaded."""
    semver: str = ""
    """Its semantic version, if it has one and that is known."""
    is_decoupled: bool = False
    """The value of `ServedVersion`."""
    execution: Execution | None = None
    comes_back: bool = False
    """The value of `ServedVersion`."""


class AnnouncedModels(msgspec.Struct, frozen=True, array_like=True):
    """A worker's announcement of the models that callers have loaded and unloaded."""

    revision: int
    """The newest revision of the set of models that it follows."""
    pending: tuple[str, ...] = ()
    """Models that it is loading or unloading."""
    refused: dict[str, tuple[str, str]] = {}
    """By model that it cannot load, the class of the error, and its words."""
    unloaded: tuple[str, ...] = ()
    """Models of its store that it should not serve."""


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """The announcement of a worker."""

    worker: str
    started: bool
    """True once it has read the whole store."""
    versions: tuple[AnnouncedVersion, ...]
    live: dict[str, tuple[int, int]]
    """By model: the pointers' generation, and the version it has ready as that generation wants."""
    fault: str = ""
    """Reason for which it cannot serve its store or lacks a model; empty if neither."""
    aliases: dict[str, dict[str, int]] = {}
    """By model, the version that each of its aliases names."""
    models: AnnouncedModels | None = None
    """Set if callers choose its models."""
    traffic: dict[str, str] = {}
    """`Traffic` as JSON by model, of those that have a rollout, a shadow or a split."""


@dataclass(frozen=True, slots=True)
class FleetView:
    """The versions that all workers together serve."""

    versions: dict[Lane, ServedVersion]
    live: dict[str, int]
    row_s: dict[Lane, float]
    """The value of `AnnouncedVersion`, of all workers together."""
    started: bool
    """True if any worker is started."""
    present: int = 0
    """Workers that have announced themselves."""
    faults: tuple[str, ...] = ()
    """Faults of workers' stores, each once."""
    workers: dict[Lane, frozenset[str]] = field(default_factory=dict)
    """Names of the workers that may take requests of a version, by its default lane."""
    aliases: dict[str, dict[str, int]] = field(default_factory=dict)
    follow: tuple[AnnouncedModels, ...] = ()
    """Announcements of the workers whose models callers choose."""
    is_chosen: bool = False
    """True if callers choose the models of all workers, and these have read their stores: a version
    that none of them has was unloaded."""
    traffic: dict[str, Traffic | None] = field(default_factory=dict)
    """By model, None for one without traffic; a model is left out while its traffic is unknown."""


def announced(served: ServedVersion, row_s: Mapping[Lane, float]) -> AnnouncedVersion:
    """Returns the announcement of a version.

    Args:
        served: the version, with the artifacts that may be asked for.
        row_s: as in `FleetView`, of this worker.
    """
    return AnnouncedVersion(
        served.lane.model,
        served.lane.version,
        served.state,
        served.reason,
        served.signature.model_dump_json() if served.signature is not None else "",
        served.platform,
        served.artifact,
        row_s.get(served.lane, 0.0),
        tuple(
            AnnouncedArtifact(
                known.name,
                known.precision,
                known.accuracy_loss,
                known.row_ms,
                known.lane == served.lane,
                row_s.get(known.lane, 0.0),
            )
            for known in served.artifacts
        ),
        served.semver,
        served.is_decoupled,
        served.execution,
        served.comes_back,
    )


def fleet_view(announcements: Sequence[Announcement]) -> FleetView:
    """Merges the announcements of all workers."""
    by_lane: dict[Lane, list[AnnouncedVersion]] = defaultdict(list)
    workers: dict[Lane, set[str]] = defaultdict(set)
    for announcement in announcements:
        for version in announcement.versions:
            lane = Lane(version.model, version.version)
            by_lane[lane].append(version)
            workers[lane].add(announcement.worker)
    models = {model for announcement in announcements for model in announcement.live}
    versions = {lane: _together(lane, said) for lane, said in by_lane.items()}
    return FleetView(
        versions=versions,
        live={model: _live(model, announcements) for model in models},
        row_s=_row_s_by_lane(by_lane),
        started=any(announcement.started for announcement in announcements),
        present=len(announcements),
        faults=tuple(dict.fromkeys(said.fault for said in announcements if said.fault)),
        workers={lane: frozenset(names) for lane, names in workers.items()},
        aliases=_aliases(announcements, versions),
        follow=tuple(said.models for said in announcements if said.models is not None),
        is_chosen=bool(announcements)
        and all(said.started and said.models is not None for said in announcements),
        traffic=_traffic_by_model(announcements),
    )


def announced_traffic(traffics: Mapping[str, Traffic], models: Collection[str]) -> dict[str, str]:
    """Returns the announcement of the traffic of some models."""
    return {model: found.model_dump_json() for model, found in traffics.items() if model in models}


def _traffic_by_model(announcements: Sequence[Announcement]) -> dict[str, Traffic | None]:
    """Returns the traffic that the newest pointers have, of the models whose traffic is known."""
    newest: dict[str, tuple[int, str]] = {}
    for announcement in announcements:
        said = {model: (-1, text) for model, text in announcement.traffic.items()}
        for model, (generation, _) in announcement.live.items():
            said[model] = generation, announcement.traffic.get(model, "")
        for model, one in said.items():
            newest[model] = max(one, newest.get(model, one))
    return {model: _traffic(text) if text else None for model, (_, text) in newest.items()}


@lru_cache(maxsize=1024)
def _traffic(text: str) -> Traffic | None:
    """Reads one; None if it cannot be read here, for the worker may be newer."""
    try:
        return Traffic.model_validate_json(text)
    except ValueError:
        return None


def _aliases(
    announcements: Sequence[Announcement], versions: Mapping[Lane, ServedVersion]
) -> dict[str, dict[str, int]]:
    """Returns the aliases by model: of several versions a ready one, of the newest pointers."""
    found: dict[str, dict[str, tuple[bool, int, int]]] = defaultdict(dict)
    for announcement in announcements:
        for model, aliases in announcement.aliases.items():
            generation, _ = announcement.live.get(model, (0, 0))
            for alias, version in aliases.items():
                served = versions.get(Lane(model, version))
                is_ready = served is not None and served.state == "ready"
                known = found[model].get(alias, (False, -1, 0))
                found[model][alias] = max(known, (is_ready, generation, version))
    return {
        model: {alias: version for alias, (_, _, version) in aliases.items()}
        for model, aliases in found.items()
    }


@lru_cache(maxsize=1024)
def _signature(text: str) -> Signature:
    """The same one for the same text: what was worked out for it is known by which it is."""
    return Signature.model_validate_json(text)


def _together(lane: Lane, said: Sequence[AnnouncedVersion]) -> ServedVersion:
    """One version, as the worker that is furthest with it says; all reasons where none is ready."""
    best = min(said, key=lambda version: _BY_RANK.index(version.state))
    reasons = dict.fromkeys(version.reason for version in said if version.reason)
    return ServedVersion(
        lane=lane,
        state=best.state,
        reason="" if best.state == "ready" else "; ".join(reasons),
        signature=_signature(best.signature) if best.signature else None,
        platform=best.platform,
        artifact=best.artifact,
        artifacts=_artifacts(lane, [version for version in said if version.state == "ready"]),
        semver=max(version.semver for version in said),
        is_decoupled=best.is_decoupled,
        execution=best.execution,
        comes_back=best.comes_back,
    )


def _artifacts(lane: Lane, ready: Sequence[AnnouncedVersion]) -> tuple[ServedArtifact, ...]:
    """Returns the artifacts that can be requested, the default one first."""
    by_lane: dict[Lane, list[AnnouncedArtifact]] = {lane: []}
    for version in ready:
        for known in version.artifacts:
            own = lane if known.is_default else Lane(lane.model, lane.version, known.name)
            by_lane.setdefault(own, []).append(known)
    return tuple(
        ServedArtifact(
            name=" or ".join(sorted({known.name for known in alike})),
            precision=max((known.precision for known in alike), key=lambda p: p != "fp32"),
            accuracy_loss=max(known.accuracy_loss for known in alike),
            row_ms=max(known.row_ms for known in alike),
            lane=own,
        )
        for own, alike in by_lane.items()
        if alike
    )


def _live(model: str, announcements: Sequence[Announcement]) -> int:
    """Returns the live version of a model."""
    serving = [a for a in announcements if model in a.live]
    target = max(a.live[model] for a in serving)
    behind = [
        a.live[model]
        for a in serving
        if a.live[model] < target and not _failed(a, model, target[1])
    ]
    return min(behind, default=target)[1]


def _failed(announcement: Announcement, model: str, version: int) -> bool:
    """Returns True if a worker cannot serve a version."""
    return any(
        said.model == model and said.version == version and said.state == "failed"
        for said in announcement.versions
    )


def _row_s_by_lane(by_lane: Mapping[Lane, Sequence[AnnouncedVersion]]) -> dict[Lane, float]:
    """Seconds by which each request delays the next, with all workers of a lane at it."""
    found: dict[Lane, list[float]] = defaultdict(list)
    for lane, said in by_lane.items():
        found[lane] = []
        for version in said:
            if version.state != "ready":
                continue
            found[lane].append(version.row_s)
            for known in version.artifacts:
                if not known.is_default:
                    found[Lane(lane.model, lane.version, known.name)].append(known.row_s)
    return {lane: _together_s(row_s) for lane, row_s in found.items()}


def _together_s(row_s: Sequence[float]) -> float:
    rates = [1 / seconds for seconds in row_s if seconds]
    return 1 / sum(rates) if rates else 0.0
