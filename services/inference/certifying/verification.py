"""Verifies versions on the machine of a running server, while it serves models.

In: the server's store and settings. Out: certificates, for the verification service of a gateway
in this process or another.

Rule: traffic has priority: verification runs at low priority, in separate processes, with limits on
their time and memory.
"""

import asyncio
import logging
from collections.abc import Callable

from model_store.certificates.certificates import record
from model_store.errors import (
    BadNameError,
    ModelNotFoundError,
    StorageError,
    StoreError,
    VersionNotFoundError,
)
from model_store.host.memory_limit import GIB
from model_store.manifest import Manifest
from model_store.pointers import PRODUCTION
from model_store.store import ModelStore
from services.errors import ServingError, UnknownModelError, UnknownVersionError
from services.inference.backends.device import CPU
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.certifying.certification import CertifyOptions, certify
from services.inference.loading.policy import ServingPolicy
from services.low_priority_thread import start_at_low_priority
from services.queueing.verification_records import Progress, Verified
from services.telemetry.metrics import Metrics

SHARE_OF_FREE = 0.9
"""Share of the free memory that verifying an artifact may take: served models have priority."""

logger = logging.getLogger("flambeau.verification")


class Verifier:
    """Verifies versions with the options that this server serves them with.

    Args:
        store: store of the versions, and of their certificates.
        policy: served models, and options to run them with.
        time_limit_s: time limit of one artifact.
        memory_gib: memory limit of one artifact.
        metrics: counter of versions that fail verification.
    """

    def __init__(
        self,
        store: ModelStore,
        policy: ServingPolicy,
        time_limit_s: float,
        memory_gib: float,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._policy = policy
        self._time_limit_s = time_limit_s
        self._memory_limit_bytes = int(memory_gib * GIB)
        self._metrics = metrics

    async def verify(self, model: str, version: int | None, progress: Progress) -> Verified:
        """Certifies a version and records it.

        Args:
            model: name of the model.
            version: number of the version; None for the one in production, or else the newest.
            progress: callback on the event loop.

        Raises:
            UnknownModelError, UnknownVersionError: the store does not have it, or this server's
                settings exclude it.
            ServingError: the version's golden file is invalid, or the store is unavailable.
        """
        if self._policy.models and model not in self._policy.models:
            raise UnknownModelError(f"model '{model[:128]}' is not served here")
        loop = asyncio.get_running_loop()

        def tell(artifact: str, done: int, total: int) -> None:
            loop.call_soon_threadsafe(progress, artifact, done, total)

        def count_failure(number: int) -> None:
            labels = (model, str(number))
            loop.call_soon_threadsafe(
                lambda: self._metrics.failed_verifications.labels(*labels).inc()
            )

        # In a daemon thread: a server that stops does not wait for it.
        work = start_at_low_priority(lambda: self._verified(model, version, tell, count_failure))
        try:
            return await asyncio.wrap_future(work)
        except (ModelNotFoundError, BadNameError) as error:
            raise UnknownModelError(str(error)) from error
        except VersionNotFoundError as error:
            raise UnknownVersionError(str(error)) from error
        except StoreError as error:
            raise ServingError(str(error)) from error

    def _verified(
        self,
        model: str,
        version: int | None,
        progress: Progress,
        count_failure: Callable[[int], None],
    ) -> Verified:
        manifest = self._manifest(model, version)
        load = self._policy.lane_of(model).load
        options = CertifyOptions(
            backend=load.backend,
            trust=load.trust,
            time_limit_s=self._time_limit_s,
            memory_limit_bytes=min(self._memory_limit_bytes, _free_bytes()),
            gently=True,
        )
        certificate = certify(self._store, manifest, options, progress)
        if not certificate.holds:
            count_failure(manifest.version)
        found = {"model": model, "version": manifest.version, "holds": certificate.holds}
        data = certificate.to_json()
        try:
            path = record(self._store, manifest, certificate)
        except StorageError as error:
            logger.warning("certificate not recorded", extra={**found, "reason": str(error)})
            return Verified(certificate=data, record_failure=str(error))
        logger.info("version verified", extra={**found, "certificate": path})
        return Verified(certificate=data, recorded_as=path)

    def _manifest(self, model: str, version: int | None) -> Manifest:
        if version is None:
            versions, pointers = self._store.versions(model), self._store.pointers(model)
            live = pointers.aliases.get(PRODUCTION) if pointers else None
            version = live or versions[-1]
        return self._store.manifest(model, version)


def _free_bytes() -> int:
    used, total = device_memory_bytes(CPU)
    return max(int((total - used) * SHARE_OF_FREE), 1)
