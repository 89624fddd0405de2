"""TrainJobs through the API of Kubernetes, beside the event loop."""

import asyncio
from typing import Any

from services.kubernetes.object_api import ObjectApi
from services.trainer.config import KubeflowSettings
from services.trainer.executors.train_job import API_GROUP, API_VERSION, PLURAL


class TrainJobApi:
    """The TrainJobs of one namespace; errors are those of `ObjectApi`.

    Args:
        settings: URL of the API, and service account.

    Raises:
        ConfigError: no namespace is known, or the URL is no web address.
    """

    def __init__(self, settings: KubeflowSettings) -> None:
        self._objects = ObjectApi(settings, f"{API_GROUP}/{API_VERSION}", PLURAL)

    async def create(self, wanted: dict[str, Any]) -> None:
        """Creates an object; an existing one of its name remains.

        If the task is cancelled, it waits for the response first, so that a later read finds it.
        """
        creating = asyncio.create_task(asyncio.to_thread(self._objects.create, wanted))
        try:
            await asyncio.shield(creating)
        except asyncio.CancelledError:
            await asyncio.wait({creating})
            raise

    async def read(self, name: str) -> dict[str, Any] | None:
        """Reads an object; returns None if there is none."""
        return await asyncio.to_thread(self._objects.read, name)

    async def delete(self, found: dict[str, Any]) -> bool:
        """Deletes an object that was read; returns True once it is deleted with its pods."""
        return await asyncio.to_thread(self._objects.delete, found)
