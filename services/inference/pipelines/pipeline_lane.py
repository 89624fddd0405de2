"""The lane of a pipeline: an intake whose requests run through the workers of other lanes.

In: entries, as a worker of a single model would get them, whether from this process's gateway or
from Redis. Out: one outcome each. So every protocol, jobs, cancellation and the takeover of a dead
worker's requests are the same as for a model.
"""

from services.errors import ModelNotReadyError, UnsupportedError
from services.inference.pipelines.pipeline_run import PipelineRun
from services.inference.pipelines.plan import PlannedStep, Planner
from services.queueing.memory_queue import Entry
from services.queueing.records import Lane

BATCHES_AHEAD = 2
"""Full batches of each step that are worth holding: one that runs, and one that waits."""


class PipelineLane:
    """Runs the requests of one pipeline.

    Args:
        lane: its lane.
        planner: makes the plan of each request.
    """

    def __init__(self, lane: Lane, planner: Planner) -> None:
        self._lane = lane
        self._planner = planner
        self._runs: dict[Entry, PipelineRun] = {}

    @property
    def waiting(self) -> int:
        """Number of requests that run."""
        return len(self._runs)

    @property
    def capacity(self) -> int:
        """Most requests to hold here: those that fill two batches of each step."""
        return BATCHES_AHEAD * sum(s.signature.max_batch_size for s in self._steps())

    @property
    def background_capacity(self) -> int:
        """Most jobs to hold here: `capacity`, or 0 while requests wait for a step."""
        return 0 if any(step.worker.waiting for step in self._steps()) else self.capacity

    def _steps(self) -> tuple[PlannedStep, ...]:
        """Returns the steps with their workers; none while a part is not loaded."""
        try:
            return self._planner.plan().steps
        except ModelNotReadyError:
            return ()

    def accept(self, entry: Entry) -> None:
        """Begins to run an entry."""
        if entry.request.sequence is not None:
            entry.finish(
                UnsupportedError(
                    f"model {self._lane} is a pipeline, which keeps no sequences; leave out "
                    "sequence_id"
                )
            )
            return
        run = self._runs[entry] = PipelineRun(entry, self._planner, self._ended)
        run.begin()

    def discard(self, entry: Entry, reason: str) -> None:
        """Drops the requests of the steps of a dead entry."""
        run = self._runs.pop(entry, None)
        if run is not None:
            run.abandon(reason)

    def release(self, entry: Entry) -> bool:
        """Returns False: every entry has begun to run, and its process finishes it."""
        return False

    def _ended(self, entry: Entry) -> None:
        self._runs.pop(entry, None)
