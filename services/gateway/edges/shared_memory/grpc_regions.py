"""Tensors of gRPC requests in shared memory.

In: a message whose inputs and outputs name regions. Out: their raw data, and the message without
those parameters, so that it is decoded as any other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError
from services.gateway.refusals import naming_input
from services.gateway.shared_regions.regions import (
    RegionPart,
    RegionUse,
    Reserve,
    take_part,
    without_region,
)
from services.gateway.sliced_work import Slices

_A_SLICE = 64
"""Inputs or outputs in a slice; each takes some 5 µs."""
Raw = bytes | memoryview | None
Check = Callable[[Sequence[tuple[str, str, tuple[int, ...]]]], object]
"""Checks the inputs of a request against its model; raises a `ServingError`."""


class InRegions:
    """A request with outputs in shared memory; stands for its message in the encoder.

    Attributes:
        message: the message.
        regions: places of its outputs.
    """

    __slots__ = ("message", "regions")
    raw_input_contents: ClassVar[Sequence[bytes]] = ()
    """None, so that the encoder does not take it for the usual request."""
    id: ClassVar[str] = ""
    """Not that of the message, for the same reason."""

    def __init__(self, message: pb.ModelInferRequest, regions: RegionUse) -> None:
        self.message, self.regions = message, regions


def message_of(request: pb.ModelInferRequest | InRegions) -> pb.ModelInferRequest:
    """Returns the message of a request."""
    return request.message if isinstance(request, InRegions) else request


def take_regions(
    request: pb.ModelInferRequest,
    raw: Sequence[Raw] | None,
    regions: RegionUse,
    check: Check,
    reserve: Reserve,
) -> Slices[Sequence[Raw] | None]:
    """Reads the inputs that are in regions, and notes the outputs that are wanted there.

    Args:
        request: the message; loses the parameters of regions.
        raw: its raw data, of the inputs outside of regions alone.
        regions: the use of regions by the request; takes the places of outputs.
        check: check against the model, before anything is read.
        reserve: reservation of memory.

    Returns:
        The raw data of all inputs; None for one whose contents are in the message.

    Raises:
        ServingError: a region, a range or an input is wrong.
    """
    places: list[RegionPart | None] = []
    for tensor in request.inputs:
        places.append(_take(tensor.parameters, f"input '{tensor.name:.200}'"))
        if len(places) % _A_SLICE == 0:
            yield
    for number, output in enumerate(request.outputs, 1):
        part = _take(output.parameters, f"output '{output.name:.200}'")
        if part is not None:
            regions.outputs[output.name] = part
        if number % _A_SLICE == 0:
            yield
    if not any(places):
        return raw
    check([(one.name, one.datatype, tuple(one.shape)) for one in request.inputs])
    others = list(request.raw_input_contents if raw is None else raw)
    if others and len(others) != places.count(None):
        raise InvalidRequestError(
            f"raw_input_contents has {len(others)} entries for {places.count(None)} inputs outside "
            "of shared memory; give one each, in the same order"
        )
    beside = iter(others)
    found: list[Raw] = []
    for tensor, part in zip(request.inputs, places, strict=True):
        if part is None:
            found.append(next(beside, None))
            continue
        with naming_input(tensor.name):
            found.append((yield from regions.read(part, tensor.datatype, tensor.shape, reserve)))
    if not others and not any(tensor.HasField("contents") for tensor in request.inputs):
        request.raw_input_contents.append(b"")  # the response has the raw form, too
    return found


def set_place(parameters: Any, part: RegionPart, size: int) -> None:
    """Says in the parameters of an output where its data is."""
    parameters["shared_memory_region"].string_param = part.region
    parameters["shared_memory_offset"].int64_param = part.offset
    parameters["shared_memory_byte_size"].int64_param = size


def _take(parameters: Any, what: str) -> RegionPart | None:
    """Reads the place of a tensor, and removes its parameters."""
    if not parameters:
        return None
    plain: Mapping[str, Any] = {name: _value(one) for name, one in parameters.items()}
    part = take_part(plain, what)
    for name in plain.keys() - without_region(plain).keys():
        del parameters[name]
    return part


def _value(parameter: pb.InferParameter) -> object:
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)
