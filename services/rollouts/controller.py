"""Rolls versions out by themselves: writes this process's counts, judges, and moves pointers.

In: the rollouts that the directory has, and this process's counts. Out: files of evidence, and
generations of pointers. The loop runs on the event loop; all that blocks runs in a thread.

Rules: any process that reads the store may control a rollout, and one does at a time (`lease`).
A process whose own server refused the candidate ends the rollout at once, whoever holds the lease.
A rollout whose store or files fail is looked at again, and hinders no other.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from model_store.errors import StoreError
from model_store.rollouts.traffic import Rollout, Traffic
from model_store.store import ModelStore
from services.access import audit
from services.low_priority_thread import beside_loop
from services.queueing.directory import Directory
from services.rollouts.comparison_writer import ComparisonWriter
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.telemetry.rollout_metrics import RolloutMetrics

if TYPE_CHECKING:
    from services.rollouts.controlled_rollout import ControlledRollout, Moved
    from services.rollouts.evidence.evidence import Evidence
    from services.rollouts.gateway_counts import CountsOfGateways
    from services.rollouts.traffic_counts import TrafficCounts

logger = logging.getLogger("flambeau.rollouts")

LOOK_EVERY_S = 2.0
"""Seconds between two looks at the rollouts."""
ACTS = {
    "advanced": "advance rollout",
    "promoted": "promote",
    "rolled_back": "roll back",
    "refused": "roll back",
}
"""Acts of the audit log by result."""


class RolloutController:
    """The rollouts that one process counts and may control.

    Args:
        store: the model store.
        directory: what is served here, and the traffic of each model.
        metrics: metrics of rollouts.
        process: name of this process, unique for all time.
        counts: what its edges count; None in a process without edges.
        gateways: counts of processes without a store; None if there are none.
        controls: False in a process that only counts.
        interval_s: seconds between two looks; the same in all processes.
    """

    def __init__(
        self,
        store: ModelStore,
        directory: Directory,
        metrics: RolloutMetrics,
        process: str,
        counts: "TrafficCounts | None" = None,
        *,
        gateways: "CountsOfGateways | None" = None,
        controls: bool = True,
        interval_s: float = LOOK_EVERY_S,
    ) -> None:
        self._store = store
        self._directory = directory
        self._metrics = metrics
        self._process = process
        self._counts = counts
        self._gateways = gateways
        self._controls = controls
        self._interval_s = interval_s
        self._rollouts: dict[str, ControlledRollout] = {}
        """By id."""
        self._comparisons = ComparisonWriter(store.storage, process, counts, gateways)
        self._traffics: dict[str, Traffic] = {}
        """Those of the last look, by model: a server that stops withdraws its models first."""
        self._complaints: dict[tuple[str, str], str] = {}
        """Logged reasons by id of the rollout, shadow or split, and file."""

    async def run(self, stop: asyncio.Event) -> None:
        """Looks at all rollouts until `stop` is set, then writes the counts a last time."""
        while not stop.is_set():
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await stop.wait()
        for traffics in (self._traffics, dict(self._directory.traffics())):
            await self._write_own(traffics)

    async def look(self) -> None:
        """Writes the counts of each rollout, judges it, and moves it."""
        now = dict(self._directory.traffics())
        over = {model: one for model, one in self._traffics.items() if now.get(model) != one}
        self._traffics = now
        await self._write_own(over)
        present = self._present()
        self._forget_others(present)
        for model, rollout in present.items():
            await self._guarded(model, rollout.id, self._look_at(model, rollout))
        await self._write_comparisons()

    def _present(self) -> dict[str, Rollout]:
        """Returns the rollouts of the directory, by model."""
        traffics = self._directory.traffics().items()
        return {model: one.rollout for model, one in traffics if one.rollout is not None}

    def _forget_others(self, present: dict[str, Rollout]) -> None:
        ids = {rollout.id for rollout in present.values()}
        for rollout_id in self._rollouts.keys() - ids:
            del self._rollouts[rollout_id]
        traffics = self._directory.traffics().values()
        all_ids = {one for traffic in traffics for one in traffic.ids}
        for topic in [topic for topic in self._complaints if topic[0] not in all_ids]:
            del self._complaints[topic]
        if self._counts is not None:
            self._counts.keep_only(all_ids)
        if self._controls:
            self._metrics.show(
                {(model, one.candidate): one.step + 1 for model, one in present.items()}
            )

    async def _guarded(
        self,
        model: str,
        its_id: str,
        work: Coroutine[Any, Any, None],
        fault: str = "a rollout cannot be looked at",
    ) -> None:
        """Awaits work on one rollout; a failure is logged once and affects nothing else."""
        try:
            await work
        except Exception as error:
            bug = None if isinstance(error, StoreError | InvalidEvidenceError) else error
            self._complain((its_id, fault), model, fault, str(error), bug)
        else:
            self._complaints.pop((its_id, fault), None)

    def _complain(
        self,
        topic: tuple[str, str],
        model: str,
        fault: str,
        reason: str,
        bug: Exception | None = None,
    ) -> None:
        """Logs a fault, unless it was logged already."""
        if self._complaints.get(topic) != reason:
            self._complaints[topic] = reason
            logger.error(fault, extra={"model": model, "reason": reason}, exc_info=bug)

    async def _look_at(self, model: str, rollout: Rollout) -> None:
        await self._write_counts(model, rollout)
        controlled = self._controlled(model, rollout)
        if not self._controls:
            return
        if self._gateways is not None:
            relayed = self._write_relayed(self._gateways, controlled, rollout)
            await self._guarded(model, rollout.id, relayed, "counts of gateways cannot be written")
        refusal = next(
            (
                served.reason
                for served in self._directory.of_model(model)
                if served.state == "failed" and served.lane.version == rollout.candidate
            ),
            None,
        )
        if refusal is not None:
            self._tell(await beside_loop(lambda: controlled.end_refused(refusal)))
            return
        looked = await beside_loop(controlled.look)
        if looked is not None:
            self._tell(looked.moved)
            for path, reason in looked.left_out.items():
                fault = "a file of evidence was left out"
                self._complain((rollout.id, path), model, fault, reason)

    async def _write_relayed(
        self, gateways: "CountsOfGateways", controlled: "ControlledRollout", rollout: Rollout
    ) -> None:
        others = await gateways.of(rollout.id)
        await beside_loop(lambda: _write(controlled, others))

    async def _write_counts(self, model: str, rollout: Rollout) -> None:
        if self._counts is None:
            return
        own = self._counts.evidence_of(rollout.id, self._process)
        if own is not None:
            controlled = self._controlled(model, rollout)
            name, counts = own
            await beside_loop(lambda: controlled.write_own(counts, name))

    async def _write_own(self, traffics: Mapping[str, Traffic]) -> None:
        """Writes what this process has counted, whether or not the models are still served."""
        for model, one in traffics.items():
            if one.rollout is not None:
                writing = self._write_counts(model, one.rollout)
                await self._guarded(model, one.rollout.id, writing)
            await self._write_comparison(model, one)

    async def _write_comparisons(self) -> None:
        """Writes the counts of splits and shadows."""
        traffics = dict(self._directory.traffics())
        self._comparisons.keep_only(traffics)
        for model, traffic in traffics.items():
            await self._write_comparison(model, traffic)

    async def _write_comparison(self, model: str, traffic: Traffic) -> None:
        its_id, writing = next(iter(traffic.ids)), self._comparisons.write(model, traffic)
        fault = "counts of a split or a shadow cannot be written"
        await self._guarded(model, its_id, writing, fault)

    def _controlled(self, model: str, rollout: Rollout) -> "ControlledRollout":
        found = self._rollouts.get(rollout.id)
        if found is None:
            from services.rollouts.controlled_rollout import ControlledRollout

            found = self._rollouts[rollout.id] = ControlledRollout(
                self._store, model, rollout.id, self._process, self._interval_s
            )
        return found

    def _tell(self, moved: "Moved | None") -> None:
        """Logs, counts and audits a move."""
        if moved is None:
            return
        rollout = moved.rollout
        self._metrics.moves.labels(moved.model, moved.result).inc()
        log = logger.info if moved.result in ("advanced", "promoted") else logger.error
        log(
            "rollout moved",
            extra={
                "model": moved.model,
                "version": rollout.candidate,
                "rollout": rollout.id,
                "result": moved.result,
                "step": rollout.step,
                "generation": moved.generation,
                "reason": moved.why,
            },
        )
        audit.record(
            ACTS[moved.result], moved.model, self._process, "", "done",
            why=f"version {rollout.candidate}: {moved.why}",
        )  # fmt: skip


def _write(rollout: "ControlledRollout", counts: "Mapping[str, Evidence]") -> None:
    for process, evidence in counts.items():
        rollout.write_other(process, evidence)
