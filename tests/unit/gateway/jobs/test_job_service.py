"""Jobs that are refused before they are stored."""

from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from services.errors import InvalidRequestError
from services.gateway.admission import Admission, InferCall
from services.gateway.jobs.job_service import JobOptions, JobService
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import SequenceStep
from services.telemetry.metrics import Metrics
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one
from tests.unit.gateway.test_admission import LANE


async def test_step_of_a_sequence_is_refused_as_a_job() -> None:
    directory, stored = serving(one_to_one((2,)), LANE), AsyncMock()
    admission = Admission(
        directory, MemoryQueue(10), Metrics("0"), max_in_flight_requests=10, request_timeout_s=60
    )
    service = JobService(admission, cast(Any, stored), max_timeout_s=60, webhook_hosts=())
    call = InferCall(
        request_id="r", model="m", version="", inputs=(), sequence=SequenceStep("talk", True)
    )
    with pytest.raises(InvalidRequestError, match=r"step 'talk' of a sequence.*send the steps as"):
        await service.submit(call, JobOptions(), int)
    assert not stored.mock_calls
