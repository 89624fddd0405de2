"""Writes the counts of splits and shadows: those of this process, and those of gateways.

In: what was counted. Out: files in the model store (`comparison_files`), replaced if they change.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

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
        found: dict[str, Counted] = {}
        split, shadow = traffic.split, traffic.shadow
        if self._counts is not None and split is not None:
            arms = self._counts.split_snapshot().get(split.id, {})
            found[self._counts.name_of(split.id, self._process)] = arms, None
        if self._counts is not None and shadow is not None:
            name = self._counts.name_of(shadow.id, self._process)
            figures = self._counts.shadow_snapshot().get(shadow.id)
            found[name] = found.get(name, ({}, None))[0], figures
        if self._gateways is not None and split is not None:
            from services.rollouts.gateway_counts import arm_id

            for arm in split.arms[1:]:
                by_gateway = await self._gateways.of(arm_id(split.id, arm.version))
                for gateway, evidence in by_gateway.items():
                    found.setdefault(gateway, ({}, None))[0][arm.version] = evidence
        if self._gateways is not None and shadow is not None:
            for gateway, one in (await self._gateways.figures(shadow.id)).items():
                found[gateway] = found.get(gateway, ({}, None))[0], one
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
