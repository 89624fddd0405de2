"""Tensors in regions over gRPC: on streams, of decoupled models, and in answers that are raw."""

from pathlib import Path

import numpy as np
import pytest

from protos import open_inference_pb2 as pb
from services.gateway.edges.grpc_codec import encode_raw_always
from services.gateway.edges.shared_memory.grpc_regions import InRegions
from services.gateway.shared_regions.region_table import RegionTable, make_table
from services.gateway.shared_regions.regions import RegionPart, RegionUse, SharedRegions
from services.gateway.sliced_work import at_once
from tests.fixtures.queue_ends import reply_of
from tests.unit.gateway.edges.stream_world import Gateway, answer, end, part, request
from tests.unit.wire.http_wire import settle

SIZE = 64


class Shared:
    """A gateway whose callers have the region `r`: an object of `SIZE` bytes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "client"
        self.file.write_bytes(bytes(SIZE))
        self.regions = SharedRegions("client", 2**20, RegionTable(make_table()), str(folder))
        self.gateway = Gateway()
        self.gateway.path.regions = self.regions
        self.gateway.begin()

    def number(self, offset: int) -> int:
        """Returns the number at an offset."""
        return int(np.frombuffer(self.file.read_bytes(), np.int64, 1, offset)[0])


@pytest.fixture
async def shared(tmp_path: Path) -> Shared:
    made = Shared(tmp_path)
    await made.regions.register("", "r", "client", 0, SIZE)
    return made


def place(tensor: object, offset: int) -> None:
    parameters = tensor.parameters  # type: ignore[attr-defined]
    parameters["shared_memory_region"].string_param = "r"
    parameters["shared_memory_offset"].int64_param = offset
    parameters["shared_memory_byte_size"].int64_param = 8


def to_region(id: str, offset: int, model: str = "one", **parameters: bool) -> pb.ModelInferRequest:
    """Returns a request whose input has raw data, and whose output is wanted in the region."""
    made = request(id, 5, model, **parameters)
    place(made.outputs.add(name="y"), offset)
    return made


async def test_requests_of_a_stream_use_regions(shared: Shared) -> None:
    g = shared.gateway
    shared.file.write_bytes((9).to_bytes(8, "little") + bytes(SIZE - 8))
    first = to_region("a", 16)
    del first.raw_input_contents[:]
    place(first.inputs[0], 0)
    unknown = to_region("b", 8)
    unknown.outputs[0].parameters["shared_memory_region"].string_param = "s"
    g.ask(first, unknown, request("c", 1))
    await settle()
    a, b, c = g.intake.entries
    assert [one.request.request_id for one in (a, b, c)] == [*"abc"], "they keep their order"
    assert a.request.inputs["x"].tolist() == [9]
    for entry, value in ((c, 3), (b, 2), (a, 1)):
        answer(entry, value)
    await settle()
    assert shared.number(16) == 1
    in_region, error, plain = g.answers()
    (output,) = in_region.infer_response.outputs
    assert output.parameters["shared_memory_region"].string_param == "r"
    assert output.parameters["shared_memory_byte_size"].int64_param == 8
    assert (in_region.infer_response.id, error.infer_response.id) == ("a", "b")
    assert "Unable to find system shared memory region: 's'" in error.error_message
    assert plain.infer_response.raw_output_contents[0] == (3).to_bytes(8, "little")
    assert g.held_bytes == 0


async def test_a_request_that_is_over_holds_up_no_other(shared: Shared) -> None:
    g = shared.gateway
    too_long = to_region("a", 8)
    too_long.inputs[0].shape[:] = [2]
    place(too_long.inputs[0], 0)
    del too_long.raw_input_contents[:]
    g.ask(too_long, to_region("b", 8), request("c", 1))
    await settle()
    b, c = g.intake.entries
    assert [one.request.request_id for one in (b, c)] == ["b", "c"]
    for entry in (b, c):
        answer(entry, 1)
    await settle()
    assert [bool(one.error_message) for one in g.answers()] == [True, False, False]
    g.ask(request("d", 1))
    assert len(g.intake.entries) == 3, "it is read at once"


async def test_the_place_of_an_output_has_one_answer(shared: Shared) -> None:
    g = shared.gateway
    wants_end = {"triton_enable_empty_final_response": True}
    g.ask(to_region("m", 8, "many"), to_region("n", 24, "many", **wants_end))
    await settle()
    m, n = g.intake.entries
    for entry, value in ((m, 7), (n, 6), (m, 8)):
        part(entry, value)
    end(n)
    await settle()
    assert (shared.number(8), shared.number(24)) == (7, 6)
    placed, failed, other, ended = sorted(
        g.answers(), key=lambda one: (one.infer_response.id, one.error_message)
    )
    assert [one.infer_response.id for one in (placed, failed, other, ended)] == [*"mmnn"]
    assert "output 'y' has one place in shared memory" in failed.error_message
    assert placed.infer_response.outputs[0].parameters["shared_memory_offset"].int64_param == 8
    assert (len(other.infer_response.outputs), len(ended.infer_response.outputs)) == (1, 0)
    assert ended.infer_response.parameters["triton_final_response"].bool_param


async def test_answers_that_are_always_raw_are_in_regions_too(shared: Shared) -> None:
    use = RegionUse(shared.regions, "")
    use.outputs["y"] = RegionPart("r", 32, 8)
    wanted = InRegions(pb.ModelInferRequest(id="7"), use)
    encoded = encode_raw_always(reply_of({"y": np.array([4])}), wanted, int)
    assert not isinstance(encoded, bytes)
    found = pb.ModelInferResponse.FromString(b"".join(at_once(encoded)))
    assert (found.id, list(found.raw_output_contents)) == ("7", [b""])
    assert found.outputs[0].parameters["shared_memory_offset"].int64_param == 32
    assert shared.number(32) == 4
