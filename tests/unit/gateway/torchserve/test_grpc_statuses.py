"""Errors of the TorchServe door as gRPC statuses."""

import pytest

from services.errors import (
    BackendError,
    DeadlineExceededError,
    PayloadTooLargeError,
    ServingError,
    ShuttingDownError,
    TooManyInFlightError,
    WouldMissDeadlineError,
)
from services.gateway.edges.torchserve.grpc_statuses import (
    no_model_name,
    of_management,
    of_prediction,
)
from services.gateway.torchserve.refusals import (
    INTERNAL,
    Refusal,
    RefusedError,
    bad_request,
    model_not_found,
    no_worker,
    version_not_found,
)

ARCHIVE, HTTP = "org.pytorch.serve.archive.model", "org.pytorch.serve.http"


def told(error: ServingError) -> tuple[str, str]:
    return error.grpc_code, str(error)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (model_not_found("m"), "INTERNAL", f"Model not found: m\n{ARCHIVE}.ModelNotFoundException"),
        (
            version_not_found("m", "9"),
            "INTERNAL",
            "Model version: 9 does not exist for model: m\n"
            f"{ARCHIVE}.ModelVersionNotFoundException",
        ),
        (
            RefusedError(Refusal(503, INTERNAL, "Prediction failed")),
            "UNAVAILABLE",
            f"Prediction failed\n{HTTP}.InternalServerException",
        ),
        (
            RefusedError(Refusal(507, INTERNAL, "Out of resources")),
            "INTERNAL",
            f"Out of resources\n{HTTP}.InternalServerException",
        ),
        (
            RefusedError(Refusal(499, INTERNAL, "x")),
            "CANCELLED",
            f"x\n{HTTP}.InternalServerException",
        ),
        (
            RefusedError(Refusal(418, INTERNAL, "x")),
            "FAILED_PRECONDITION",
            f"x\n{HTTP}.InternalServerException",
        ),
        (BackendError("it broke"), "INTERNAL", f"it broke\n{HTTP}.InternalServerException"),
        (no_model_name(), "INTERNAL", "Parameter model_name is required.\nBadRequestException.()"),
        (DeadlineExceededError("late"), "DEADLINE_EXCEEDED", "late"),
        (WouldMissDeadlineError("too late"), "DEADLINE_EXCEEDED", "too late"),
        (TooManyInFlightError("many"), "RESOURCE_EXHAUSTED", "many"),
        (PayloadTooLargeError("large"), "RESOURCE_EXHAUSTED", "large"),
        (ShuttingDownError("leaving"), "UNAVAILABLE", "leaving"),
    ],
)
def test_predictions(error: ServingError, code: str, message: str) -> None:
    assert told(of_prediction(error)) == (code, message)


def test_predictions_without_workers() -> None:
    code, message = told(of_prediction(no_worker("m")))
    assert code == "INTERNAL"
    assert message.startswith('Model "m" has no worker to serve inference request.')
    assert message.endswith("\nInternalServerException.()")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            model_not_found("m"),
            "NOT_FOUND",
            f"Model not found: m\n{ARCHIVE}.ModelNotFoundException",
        ),
        (
            bad_request("Parameter url is required."),
            "INVALID_ARGUMENT",
            f"Parameter url is required.\n{HTTP}.BadRequestException",
        ),
        (
            RefusedError(Refusal(500, INTERNAL, "Failed to start workers")),
            "INTERNAL",
            f"Failed to start workers\n{HTTP}.InternalServerException",
        ),
    ],
)
def test_management(error: ServingError, code: str, message: str) -> None:
    assert told(of_management(error)) == (code, message)
