"""Untrusted messages with very many fields: fields are counted before parsing."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from protos.flambeau.v1 import training_pb2 as pb
from services.errors import InvalidRequestError
from services.trainer.edges.message_fields import MAX_FIELDS, read_message


def test_a_message_is_read_as_it_was_written() -> None:
    sent = pb.SubmitTrainingRequest(recipe="a" * 300, bundle=bytes(2**20), overrides=["a=1", ""])
    assert read_message(pb.SubmitTrainingRequest, sent.SerializeToString()) == sent
    asked = pb.WatchTrainingRequest(id="x", after=2**64 - 1, follow=True)
    assert read_message(pb.WatchTrainingRequest, asked.SerializeToString()) == asked


@pytest.mark.parametrize(
    "field",
    [b"\x1a\x00", b"\x78\x01", b"\x79" + bytes(8), b"\x7d" + bytes(4), b"\x7b\x7c", b"\x1a\x01a"],
    ids=["override", "varint", "64 bits", "32 bits", "groups", "text"],
)
def test_so_many_fields_are_read_and_no_more(field: bytes) -> None:
    most = MAX_FIELDS // (2 if field == b"\x7b\x7c" else 1)
    read_message(pb.SubmitTrainingRequest, field * most)
    with pytest.raises(InvalidRequestError, match="more than 1000 fields; send fewer"):
        read_message(pb.SubmitTrainingRequest, field * (most + 1))


@given(st.binary(max_size=60))
def test_nothing_else_than_a_message_makes_it_fail_otherwise(data: bytes) -> None:
    try:
        found = read_message(pb.SubmitTrainingRequest, data)
    except InvalidRequestError:
        with pytest.raises(DecodeError):
            pb.SubmitTrainingRequest.FromString(data)
    else:
        assert found == pb.SubmitTrainingRequest.FromString(data)


def test_what_ends_early_is_no_message() -> None:
    for data in (b"\x1a", b"\x1a\x05a", b"\xff" * 20, b"\x1e"):
        with pytest.raises(InvalidRequestError, match="this is not a SubmitTrainingRequest"):
            read_message(pb.SubmitTrainingRequest, data)
