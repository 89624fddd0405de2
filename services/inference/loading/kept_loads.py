"""Loads of further artifacts (`keep_artifacts`), beside the default ones that serve already.

In: the loaded lanes. Out: further lanes; a log line for each artifact that cannot be loaded.
"""

import asyncio

from services.inference.loading.lanes import Lanes
from services.inference.loading.model_failure import Complaints
from services.queueing.records import Lane


class KeptLoads:
    """Loads the further artifacts of the versions that are served.

    Args:
        lanes: the loaded lanes.
        complaints: logs the ones that cannot be loaded.

    Attributes:
        settled: versions whose further artifacts were loaded, or refused, in the last pass.
    """

    def __init__(self, lanes: Lanes, complaints: Complaints) -> None:
        self._lanes, self._complaints = lanes, complaints
        self.settled: set[Lane] = set()

    async def load_all(self, tasks: asyncio.TaskGroup) -> None:
        """Loads those of every served version, one after the other."""
        settled = set()
        for lane in self._lanes.loaded():
            topic = f"further artifacts of {lane}"
            try:
                await self._lanes.load_kept(lane, tasks)
            except Exception as error:
                self._complaints.failed(topic, "cannot be loaded", error)
            else:
                self._complaints.settle(topic)
            settled.add(lane)
        self.settled = settled
