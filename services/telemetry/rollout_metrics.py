"""Metrics of rollouts: the step of each, and its moves."""

from prometheus_client import CollectorRegistry

from services.telemetry.loop_metrics import LoopCounter, LoopGauge

MOVES = ("advanced", "promoted", "rolled_back", "refused")
"""Values of the label `result`: the next step, the promotion, the end by a broken guard, and the
end because a server could not load the candidate."""


class RolloutMetrics:
    """Metrics of the rollouts that a process may control; the event loop updates them.

    Args:
        registry: registry of the process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.step = LoopGauge(
            "flambeau_rollout_step",
            "Step of the rollout of a version, the first being 1; there is none without a rollout.",
            ("model", "version"),
            registry=registry,
        )
        self.moves = LoopCounter(
            "flambeau_rollout_moves",
            "Moves of rollouts by this process, by result: advanced, promoted, rolled_back (a "
            "guard was broken) or refused (the candidate could not be loaded).",
            ("model", "result"),
            registry=registry,
        )
        self._shown: set[tuple[str, str]] = set()

    def show(self, steps: dict[tuple[str, int], int]) -> None:
        """Shows the steps of the rollouts that there are, by model and candidate; counted from 1.

        The moves of their models start at 0.
        """
        shown = {(model, str(version)): step for (model, version), step in steps.items()}
        for labels in self._shown - shown.keys():
            self.step.remove(*labels)
        for labels, step in shown.items():
            self.step.labels(*labels).value = float(step)
            if labels not in self._shown:
                for move in MOVES:
                    self.moves.labels(labels[0], move)
        self._shown = {*shown}
