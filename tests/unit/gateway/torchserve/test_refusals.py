"""Errors of the platform in TorchServe's words."""

import pytest

from services.errors import (
    BackendError,
    DeadlineExceededError,
    DeviceError,
    InputRefusedError,
    PayloadTooLargeError,
    ServingError,
)
from services.gateway.edges.torchserve.grpc_statuses import of_prediction
from services.gateway.torchserve.refusals import Refusal, refusal_of
from services.wire.body import too_large
from services.wire.errors import too_slow

INTERNAL, BAD = "InternalServerException", "BadRequestException"
LATE = "request 'r' to model 'mod'%s reached its deadline before its response"


@pytest.mark.parametrize(
    ("error", "code", "kind", "words"),
    [
        (BackendError("model 'mod' version 5 ended its process on this input (exit code 7)"),
         500, INTERNAL, "Worker died."),
        (BackendError("model 'mod' version 5 did not finish within 8 s (execution_timeout_s); its "
                      "worker was restarted"), 500, INTERNAL, "Worker died."),
        (DeviceError("the worker process of artifact 'python' (pid 9) ended"),
         500, INTERNAL, "Worker died."),
        (BackendError("the registrations cannot be read"),
         500, INTERNAL, "the registrations cannot be read"),
        (InputRefusedError("model 'mod' version 5 does not take this input: no"),
         400, BAD, "model 'mod' does not take this input: no"),
        (DeadlineExceededError(LATE % " version 12"), 408, "RequestTimeoutException", LATE % ""),
        (too_large(100_000), 413, BAD,
         "the body is over 100000 bytes, the limit (max_request_size); send less"),
    ],
)  # fmt: skip
def test_callers_read_no_version_or_setting_of_the_server(
    error: ServingError, code: int, kind: str, words: str
) -> None:
    assert refusal_of(error) == Refusal(code, kind, words)


def test_nor_do_callers_by_grpc() -> None:
    late = of_prediction(DeadlineExceededError(LATE % " version 12"))
    assert (late.grpc_code, str(late)) == ("DEADLINE_EXCEEDED", LATE % "")
    assert of_prediction(too_slow(9, "message")).grpc_code == "DEADLINE_EXCEEDED"
    large = of_prediction(PayloadTooLargeError("9 bytes, the limit (max_request_bytes)"))
    assert str(large) == "9 bytes, the limit (max_request_size)"
