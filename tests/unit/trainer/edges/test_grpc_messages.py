"""Events of training as messages."""

import pytest

from protos.flambeau.v1 import training_pb2 as pb
from services.trainer.edges.grpc_calls import event_message
from services.trainer.records import JobEvent


def test_event_of_a_metric_has_its_epoch_and_values() -> None:
    message = event_message(JobEvent(seq=7, kind="metric", epoch=3, metrics={"val/accuracy": 0.5}))
    assert (message.seq, message.kind) == (7, pb.TrainingEvent.KIND_METRIC)
    assert (message.epoch, dict(message.metrics)) == (3, {"val/accuracy": 0.5})


def test_event_of_a_state_has_no_epoch() -> None:
    message = event_message(JobEvent(kind="state", state="running", attempt=2))
    assert (message.attempt, message.epoch) == (2, 0)
    assert message.state == pb.TrainingJob.STATE_RUNNING


@pytest.mark.parametrize(
    ("time", "seconds", "nanos"),
    [(0.0, 0, 0), (1_700_000_000.0, 1_700_000_000, 0), (1.25, 1, 250_000_000)],
)
def test_time_of_an_event_has_microseconds(time: float, seconds: int, nanos: int) -> None:
    message = event_message(JobEvent(kind="log", text="a line", time=time))
    assert (message.time.seconds, message.time.nanos) == (seconds, nanos)
