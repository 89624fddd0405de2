"""Messages with our own encoding, and outputs compared with torch's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.peers.answers import WrongAnswerError, compare
from bench.peers.protobuf_wire import field, first_field
from protos import open_inference_pb2 as pb


@given(st.binary(max_size=70_000))
def test_a_field_reads_back(data: bytes) -> None:
    assert first_field(field(1, data) + field(3, b"more")) == data


@given(st.text(max_size=300))
def test_a_field_is_what_protobuf_itself_writes(name: str) -> None:
    theirs = pb.ModelReadyRequest(name=name or "x", version="1").SerializeToString()
    assert field(1, (name or "x").encode()) + field(2, b"1") == theirs


@pytest.mark.parametrize("message", [b"", b"\x12\x00", b"\x0a\x80"])
def test_a_message_without_field_1_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="field 1"):
        first_field(message)


def test_answers_near_torchs_pass_and_others_do_not() -> None:
    expected = np.array([[-1.0, 0.0, 3.0]], np.float32)
    compare(expected + np.float32(0.003), expected, tolerance=1e-3)
    with pytest.raises(WrongAnswerError, match="spread"):
        compare(expected + np.float32(0.005), expected, tolerance=1e-3)
    with pytest.raises(WrongAnswerError, match="spread"):
        compare(expected * np.float32("nan"), expected, tolerance=1e-3)
    with pytest.raises(WrongAnswerError, match=r"\(1, 2\)"):
        compare(expected[:, :2], expected, tolerance=1e-3)
