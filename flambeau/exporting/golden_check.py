"""Has an exported version answer its golden rows, in a process of its own.

Rules: the version's own tolerance decides; time and memory have limits.
"""

import threading
from collections.abc import Callable

from flambeau.exporting.errors import ExportCheckError
from flambeau.exporting.export_request import ExportRequest
from model_store.arrays.parity import Comparison, first_failure
from model_store.golden import GoldenRows, read_golden
from model_store.manifest import Artifact
from services.errors import BackendError
from services.inference.backends.backend import Backend
from services.inference.backends.device import CPU
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.isolated_backend import IsolatedBackend, open_isolated_backend

SHARE_OF_FREE = 0.9
"""Share of the free memory that the process may take."""

Replay = Callable[[Backend, ExportRequest, Artifact, GoldenRows], list[Comparison]]
"""Runs golden rows through the exported version."""


class AnswerError(Exception):
    """An answer that has not the outputs of the version."""


def check_answers(
    request: ExportRequest,
    artifact: Artifact,
    words: str,
    opened: VerifiedArtifact,
    replay: Replay,
) -> float:
    """Compares the answers of an exported version with the golden outputs.

    Args:
        request: the version and the limits.
        artifact: the artifact that was exported.
        words: the export in messages, such as `the archive`.
        opened: a Python model that runs the exported version.
        replay: runs golden rows through it.

    Returns:
        The largest absolute difference.

    Raises:
        ExportCheckError: it fails, takes too long, or gives other answers.
        StoreError: the version's golden rows cannot be read.
    """
    golden = read_golden(request.store, request.manifest)
    late = threading.Event()
    backend: IsolatedBackend | None = None
    limit = None
    try:
        backend = _opened(opened, request)
        limit = threading.Timer(request.time_limit_s, _end, (late, backend))
        limit.start()
        found = replay(backend, request, artifact, golden)
    except (BackendError, AnswerError) as error:
        reason = f"it took longer than {request.time_limit_s:g} s" if late.is_set() else str(error)
        raise ExportCheckError(
            f"{words} of {request.title} does not answer the golden rows: {reason}"
        ) from error
    finally:
        if limit is not None:
            limit.cancel()
        if backend is not None:
            backend.close()
    if failure := first_failure(found, artifact.verification.tolerance):
        raise ExportCheckError(
            f"{words} of {request.title} gives other answers than the version: {failure}; "
            "export another artifact with --artifact"
        )
    return max(one.parity.max_abs_difference for one in found)


def _end(late: threading.Event, backend: IsolatedBackend) -> None:
    late.set()
    backend.kill()


def _opened(artifact: VerifiedArtifact, request: ExportRequest) -> IsolatedBackend:
    used, total = device_memory_bytes(CPU)
    return open_isolated_backend(
        artifact,
        OpenOptions(),
        memory_limit_bytes=min(
            request.memory_limit_bytes, max(int((total - used) * SHARE_OF_FREE), 1)
        ),
        timeout_s=request.time_limit_s,
    )
