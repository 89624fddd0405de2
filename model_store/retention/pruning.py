"""Prunes a store: deletes the versions that its retention rule does not keep, one after the other.

In: a store, a rule, and a function that tells what servers hold. Out: a plan, and its execution.

Rules:
- the plan is made again every `PLAN_AGE_S` while versions are deleted, so that a version that came
  into use meanwhile is kept; `delete_version` itself refuses one that an alias names;
- pipelines go before their parts, so an end in between leaves none without its parts;
- every deletion is complete in itself: pruning again goes on.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from model_store.errors import (
    ConflictError,
    ModelNotFoundError,
    VersionDeletedError,
    VersionInUseError,
)
from model_store.records.deletion import delete_version
from model_store.retention.leftovers import (
    Leftover,
    ModelFiles,
    freed_bytes,
    left_uploads,
    model_files,
    remove_left_uploads,
    remove_leftover,
)
from model_store.retention.rules import Decision, RetentionRule, VersionKey, decide
from model_store.retention.stored_versions import VersionsReader
from model_store.store import ModelStore

PLAN_AGE_S = 10.0
"""Age from which a plan is made again before the next deletion."""

Holders = Callable[[], Mapping[VersionKey, Sequence[str]]]
"""Tells which versions servers hold, and which servers; raises if one does not tell."""


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Deletions that pruning would make, and the bytes that they would free."""

    decisions: tuple[Decision, ...]
    """Of the models that are pruned, by model and number."""
    sizes: dict[VersionKey, int]
    """Bytes of the files of each of these versions."""
    leftovers: tuple[Leftover, ...]
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """The outcome of one deletion."""

    key: VersionKey
    refusal: str
    """Reason for which the version was kept after all; empty if it was deleted."""


class Pruner:
    """Prunes one store.

    Args:
        store: the store.
        rule: versions to keep, although nothing uses them.
        models: the models to prune; None for all.
        holders: tells what servers hold.
        plan_age_s: age from which a plan is made again.
    """

    def __init__(
        self,
        store: ModelStore,
        rule: RetentionRule,
        models: Collection[str] | None,
        holders: Holders,
        plan_age_s: float = PLAN_AGE_S,
    ) -> None:
        self._store, self._rule, self._models = store, rule, models
        self._holders = holders
        self._plan_age_s = plan_age_s
        self._reader = VersionsReader(store)

    def decisions(self) -> list[Decision]:
        """Decides for each version of the models to prune.

        Raises:
            ModelNotFoundError: the store lacks one of them.
            StoreError: the store cannot be read.
        """
        held = self._holders()
        read = self._reader.read()
        uses = {key: list(reasons) for key, reasons in read.uses.items()}
        for key, servers in held.items():
            uses.setdefault(key, []).extend(f"held by {server}" for server in servers)
        for model in self._models or ():
            if not any(one.model == model for one in read.versions):
                self._store.versions(model)  # raises, with the nearest name
                raise ModelNotFoundError(f"model '{model}' was deleted meanwhile")
        found = decide(read.versions, uses, self._rule, self._models, datetime.now(UTC))
        return [one for one in found if self._models is None or one.facts.model in self._models]

    def plan(self) -> PrunePlan:
        """Plans the whole, and measures what it frees.

        Raises:
            StoreError: as `decisions`.
        """
        decisions = self.decisions()
        files = self._files(decisions)
        sizes = {
            one.facts.key: sum(
                file.size_bytes
                for file in files[one.facts.model].versions.get(one.facts.version, {}).values()
            )
            for one in decisions
        }
        leftovers = [one for found in files.values() for one in found.leftovers]
        gone = {one.folder for one in leftovers}
        gone |= {f"{d.facts.model}/{d.facts.version}" for d in decisions if not d.is_kept}
        freed = freed_bytes(
            versions
            for model, found in files.items()
            for number, versions in found.versions.items()
            if f"{model}/{number}" in gone
        )
        uploads = left_uploads(self._store)
        freed += sum(one.size_bytes for one in uploads)
        return PrunePlan(tuple(decisions), sizes, (*leftovers, *uploads), freed)

    def delete(self, told: Callable[[Pruned], None]) -> None:
        """Deletes what the rule does not keep.

        Args:
            told: hears of each version.

        Raises:
            StoreError: the store failed; prune again to go on.
        """
        done: set[VersionKey] = set()
        while True:
            began = time.monotonic()
            waiting = [
                one for one in self.decisions() if not one.is_kept and one.facts.key not in done
            ]
            if not waiting:
                return
            for one in sorted(waiting, key=lambda one: not one.facts.parts):
                done.add(one.facts.key)
                told(self._delete(one.facts.key))
                if time.monotonic() - began >= self._plan_age_s:
                    break

    def remove_leftovers(self, told: Callable[[Leftover], None]) -> None:
        """Removes the files of no version, and uploads without activity.

        Args:
            told: hears of each.

        Raises:
            StoreError: the store failed; prune again to go on.
        """
        now_s = time.time()
        for model in self._chosen():
            for leftover in model_files(self._store, model, now_s).leftovers:
                remove_leftover(self._store, leftover)
                told(leftover)
        for upload in left_uploads(self._store):
            told(upload)
        remove_left_uploads(self._store)

    def _delete(self, key: VersionKey) -> Pruned:
        why = (
            f"retention: not used, not among the newest {self._rule.keep_newest}, not younger than "
            f"{self._rule.keep_days:g} days"
        )
        try:
            delete_version(self._store, *key, why=why)
        except VersionDeletedError:  # another command was faster
            return Pruned(key, "")
        except (VersionInUseError, ConflictError) as error:
            return Pruned(key, str(error))
        return Pruned(key, "")

    def _chosen(self) -> list[str]:
        return sorted(self._store.listing() if self._models is None else self._models)

    def _files(self, decisions: Sequence[Decision]) -> dict[str, ModelFiles]:
        models = {*self._chosen(), *(one.facts.model for one in decisions)}
        now_s = time.time()
        return {model: model_files(self._store, model, now_s) for model in sorted(models)}
