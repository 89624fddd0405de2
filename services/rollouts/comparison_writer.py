"""Writes the counts of splits and shadows: those of this process, and those of gateways.

In: what was counted. Out: files in the model store (`comparison_files`), replaced if they change.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from model_store.rollouts.traffic import Traffic
from model_store.storage.storage import Storage
from services.low_priority_thread import beside_loop

if TYPE_CHECKING:
    from services.rollouts.evidence.evidence import Evidence
    from services.rollouts.gateway_counts import CountsOfGateways
    from services.rollouts.shadow_figures import ShadowFigures
    from services.rollouts.traffic_counts import TrafficCounts

    Counted = tuple[dict[int, Evidence], ShadowFigures | None]
    """Counts of a split by arm, and the figures of a shadow."""

T = TypeVar("T")


class ComparisonWriter:
    """The splits and shadows of one process.

    Args:
        storage: that of the model store.
        process: name of this process.
        counts: what its edges count; None in a process without edges.
        gateways: counts of processes without a store; None if there are none.
    """

    def __init__(
        self,
        storage: Storage,
        process: str,
        counts: "TrafficCounts | None",
        gateways: "CountsOfGateways | None",
    ) -> None:
        self._storage = storage
        self._process = process
        self._counts = counts
        self._gateways = gateways
        self._written: dict[tuple[str, str], Counted] = {}
        """By model and process."""

    async def write(self, model: str, traffic: Traffic) -> None:
        """Writes the counts of a model's split and shadow that have changed.

        Raises:
            InvalidEvidenceError: the name of a gateway cannot be that of a file.
            StorageError: the store failed.
        """
        if traffic.split is None and traffic.shadow is None:
            return
        for process, (arms, figures) in (await self._counted(traffic)).items():
            if (arms, figures) != self._written.get((model, process), ({}, None)):
                await self._write(model, traffic, process, arms, figures)

    def keep_only(self, models: Mapping[str, Traffic]) -> None:
        """Forgets what was written for other models."""
        for model, process in [key for key in self._written if key[0] not in models]:
            del self._written[model, process]

    async def _counted(self, traffic: Traffic) -> "dict[str, Counted]":
        """Returns the counts of all processes, by their names."""
        from services.rollouts.traffic_counts import arm_id

        found: dict[str, Counted] = {}
        split, shadow = traffic.split, traffic.shadow
        if split is not None:
            others = self._gateways.of if self._gateways is not None else _none
            for arm in split.arms[1:]:
                counted_id, own = arm_id(split.id, arm.version), None
                if self._counts is not None:
                    own = self._counts.evidence_of(counted_id, self._process)
                parts = await _parts(counted_id, own, others)
                for process, evidence in parts.items():
                    found.setdefault(process, ({}, None))[0][arm.version] = evidence
        if shadow is not None:
            own_figures = None
            if self._counts is not None:
                own_figures = self._counts.figures_of(shadow.id, self._process)
            of_others = self._gateways.figures if self._gateways is not None else _none
            figures = await _parts(shadow.id, own_figures, of_others)
            for process, one in figures.items():
                found[process] = found.get(process, ({}, None))[0], one
        return found

    async def _write(
        self,
        model: str,
        traffic: Traffic,
        process: str,
        arms: "dict[int, Evidence]",
        figures: "ShadowFigures | None",
    ) -> None:
        from services.rollouts.comparison_files import write_comparisons

        await beside_loop(
            lambda: write_comparisons(self._storage, model, traffic, process, arms, figures)
        )
        self._written[model, process] = arms, figures


async def _parts(
    counted_id: str,
    own: tuple[str, T] | None,
    others: Callable[[str], Awaitable[Mapping[str, T]]],
) -> dict[str, T]:
    """Returns the counts of an id by process: of this one, and of those without a store."""
    parts = dict([own] if own is not None else ())
    return {**parts, **await others(counted_id)}


async def _none(_: str) -> Mapping[str, Any]:
    """Returns the counts of no process."""
    return {}
