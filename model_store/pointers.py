"""Pointers: the version that each alias of a model names, and the history of its moves.

Every move is a new generation, a numbered file that is created only if absent. Of two concurrent
moves only one succeeds, and the folder is the audit log. Pure rules, no I/O.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from flambeau.protocol.names import alias_problem
from flambeau.protocol.strict import StrictModel, nearest_name
from model_store.document import SMALL, parse_as
from model_store.errors import BadNameError, DocumentError, ManifestError, VersionNotFoundError
from model_store.rollouts.traffic import Traffic

PRODUCTION = "production"
"""The alias that selects the version for requests that name none."""
MAX_ALIASES = 100
"""Aliases of a model: all of them are in one small file."""


class Approval(StrictModel):
    """The second person's part in a move that needs two."""

    request: int = Field(ge=1)
    """Number of the request."""
    by: str
    """Who approved it; `who` of the pointers asked for it."""
    why: str = ""


class Pointers(StrictModel):
    """One generation of a model's pointers."""

    schema_version: Literal[1] = 1
    generation: int = Field(ge=1)
    aliases: dict[str, int]
    """Version number by alias."""
    who: str
    when: datetime
    why: str
    traffic: Traffic = Traffic()
    """How requests that name no version are shared among versions; not written if it is empty."""
    evidence: dict[str, Any] | None = None
    """What the move was decided by, if it was judged; not written if there is none."""
    approval: Approval | None = None
    """Who approved the move, if it needed two persons; not written if there is none."""

    @classmethod
    def after(
        cls,
        before: "Pointers | None",
        aliases: Mapping[str, int],
        who: str,
        why: str,
        traffic: Traffic | None = None,
        evidence: dict[str, Any] | None = None,
    ) -> "Pointers":
        """Returns the next generation.

        Args:
            before: the newest generation; None if there is none.
            aliases: version number by alias.
            who: who moves them.
            why: reason, for the history.
            traffic: None for that before, or for what a move of `production` leaves of it.
            evidence: what the move was decided by.

        Raises:
            BadNameError: the model would have more than `MAX_ALIASES`, and more than before.
        """
        if len(aliases) > max(MAX_ALIASES, len(before.aliases) if before else 0):
            raise BadNameError(
                f"the model would have {len(aliases)} aliases, over {MAX_ALIASES}; remove some"
            )
        if traffic is None:
            traffic, live = before.traffic if before else Traffic(), aliases.get(PRODUCTION)
            if before and before.aliases.get(PRODUCTION) != live:
                traffic = traffic.after_move_to(live)
        return cls(
            generation=before.generation + 1 if before else 1,
            aliases=dict(aliases),
            who=who,
            when=datetime.now(UTC),
            why=why,
            traffic=traffic,
            evidence=evidence,
        )

    @classmethod
    def moved(
        cls, before: "Pointers | None", alias: str, version: int, who: str, why: str
    ) -> "Pointers":
        """Returns the next generation, in which an alias was pointed at a version.

        A move of `production`, also to the version that it names already, ends the rollout and the
        split, and a shadow of that version. Moves of other aliases end nothing.

        Raises:
            BadNameError: as `after`.
        """
        aliases = {**(before.aliases if before else {}), alias: version}
        traffic = before.traffic if before else Traffic()
        if alias == PRODUCTION:
            traffic = traffic.after_move_to(version)
        return cls.after(before, aliases, who, why, traffic)

    @property
    def versions(self) -> set[int]:
        """Versions that an alias names, or that a rollout, a shadow or a split needs."""
        return {*self.aliases.values(), *self.traffic.versions}

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = write(self)
        for key in ("traffic", "evidence", "approval"):
            if not getattr(self, key):
                document.pop(key, None)
        return document

    def to_json(self) -> bytes:
        """Returns the file's bytes."""
        return (self.model_dump_json(indent=2) + "\n").encode()


def check_alias(alias: str) -> str:
    """Returns the alias if it is a valid name for a pointer; existing pointers are not checked.

    Raises:
        BadNameError: it is not a valid name, or is a number, which names a version.
    """
    if (problem := alias_problem(alias)) is not None:
        raise BadNameError(problem)
    return alias


def check_new_alias(alias: str, existing: Collection[str]) -> str:
    """Returns the alias if a model may have it beside its existing ones, or has it.

    Raises:
        BadNameError: it is not a valid name, or it is new and differs by case alone from an
            existing one or from `production`.
    """
    check_alias(alias)
    if alias == PRODUCTION or alias in existing:
        return alias
    for known in (PRODUCTION, *existing):
        if known.lower() == alias.lower():
            raise BadNameError(
                f"alias '{alias}' differs by case alone from '{known}'; give '{known}', or another "
                "name"
            )
    return alias


def parse_pointers(data: bytes, where: str) -> Pointers:
    """Reads one generation.

    Raises:
        ManifestError: not JSON, violates the schema, or exceeds the limits `SMALL`.
    """
    try:
        return parse_as(Pointers, data, where, SMALL)
    except DocumentError as error:
        raise ManifestError(str(error)) from error


def switched(
    before: Mapping[str, int], pointed: Mapping[str, int], ready: Collection[int]
) -> dict[str, int]:
    """Returns the version by which a server answers each alias.

    Args:
        before: versions by alias, as it answers now.
        pointed: versions by alias, as the newest pointers name them.
        ready: versions that answer; until one of `pointed` does, the one before stays.
    """
    return {
        alias: before[alias] if target not in ready and before.get(alias) in ready else target
        for alias, target in pointed.items()
    }


def unaliased(before: Mapping[str, int], pointed: Mapping[str, int]) -> set[int]:
    """Returns versions an alias of which was removed, and has not only moved.

    Where aliases alone say what is served, such a version does not answer until others are ready.
    """
    return {version for alias, version in before.items() if alias not in pointed}


def rollback_target(newest_first: Iterable[Pointers], alias: str) -> int:
    """Returns the version that a rollback points an alias at: that before its current one.

    While a rollout or a split shares the requests of `production`, the version that it names: the
    rollback ends them.

    Args:
        newest_first: the generations; read only until the target is known.
        alias: the alias to roll back.

    Raises:
        VersionNotFoundError: there is no such alias, it was removed, or it never named another
            version.
    """
    left = iter(newest_first)
    newest = next(left, None)
    if newest is not None:
        live = newest.aliases.get(alias)
        if live is None:
            raise _not_there(newest, left, alias)
        if alias == PRODUCTION and newest.traffic.shares_requests:
            return live
        for pointers in left:
            target = pointers.aliases.get(alias, live)
            if target != live:
                return target
    raise VersionNotFoundError(
        f"alias '{alias}' has named no other version before; nothing to roll back to"
    )


def _not_there(newest: Pointers, older: Iterable[Pointers], alias: str) -> VersionNotFoundError:
    if any(alias in pointers.aliases for pointers in older):
        return VersionNotFoundError(
            f"alias '{alias}' was removed; promote a version to have it again"
        )
    hint = nearest_name(alias, newest.aliases)
    return VersionNotFoundError(f"there is no alias '{alias}'{hint}; nothing to roll back")


class PreviousTargets(NamedTuple):
    """Known targets of the rollbacks of one generation."""

    pointers: Pointers
    targets: dict[str, int]
    """By alias, the version that a rollback would restore."""

    def later(self, aliases: Mapping[str, int]) -> dict[str, int] | None:
        """Returns the targets of aliases as they are later, if only their last move is newer.

        None if one of them was not there: its target may be any before.
        """
        before = self.pointers.aliases
        if not aliases.keys() <= before.keys():
            return None
        kept = {
            alias: n for alias, n in self.targets.items() if aliases.get(alias) == before[alias]
        }
        return kept | {alias: before[alias] for alias, n in aliases.items() if before[alias] != n}


def previous_targets(
    newest_first: Iterable[Pointers], known: PreviousTargets | None = None
) -> dict[str, int]:
    """Returns by alias the version that a rollback would restore; see `rollback_target`.

    That before a rollout or a split, too: these have ended once it counts.

    Args:
        newest_first: the generations; read only until each alias of the newest has one, or down to
            that of `known` if all others were there.
        known: what is known of an older generation than the newest; None for nothing.
    """
    found: dict[str, int] = {}
    current: dict[str, int] | None = None
    for pointers in newest_first:
        current = pointers.aliases if current is None else current
        if known is not None and pointers.generation <= known.pointers.generation:
            open_ones = {alias: n for alias, n in current.items() if alias not in found}
            if (rest := known.later(open_ones)) is not None:
                return found | rest
            known = None
        for alias, version in current.items():
            if pointers.aliases.get(alias, version) != version:
                found.setdefault(alias, pointers.aliases[alias])
        if len(found) == len(current):
            break
    return found
