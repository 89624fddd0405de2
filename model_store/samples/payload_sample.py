"""A payload sample: what one request was asked and answered. Pure rules.

In: tensors, and how much of them may be told. Out: a line of JSON, and back.

Rules kept here: a line is data, and nothing in it is ever executed; of a tensor whose values are
left out, it says why; statistics are of enough elements not to be the values themselves.
"""

import base64
import binascii
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from model_store.document import DocumentLimits, parse_as
from model_store.errors import DocumentError, SampleError
from model_store.strict import StrictModel
from model_store.tensors import Array, TensorError, as_bytes, decode_raw, encode_raw

SCHEMA_VERSION: Literal[1] = 1
"""The newest schema of samples that this program reads, and the one it writes."""
MIN_ELEMENTS_OF_STATISTICS = 16
"""The least and the largest of fewer numbers say too much of each."""
PARTS = 8
"""Files that the limits of a model are cut into; no sample may be larger than one."""

LIMITS = DocumentLimits(2**30, 25_000)
"""Of a line: its tensors' values are one text each."""

LeftOut = Literal["redacted", "not kept", "text", "too large"]
"""Why values are not there: their tensor's name is to be redacted; the rule keeps none; they are
BYTES, which people write; they are more than a sample may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """How much is kept of one model."""

    kept_bytes: int
    kept_for: timedelta


class Statistics(StrictModel):
    """Of the elements of a tensor; of BYTES, of their lengths in bytes."""

    elements: int
    """How many these figures are of: fewer than there are where a tensor is large."""
    not_finite: int
    """How many of them are NaN or infinite, and not in the other figures."""
    minimum: float
    maximum: float
    mean: float
    deviation: float
    """Standard deviation."""


class SampledTensor(StrictModel):
    """One input or output."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: str | None = None
    """Its values in the raw form of the Open Inference Protocol, in base64."""
    left_out: LeftOut | None = None
    """Why `raw` is not there."""
    statistics: Statistics | None = None
    """What may be said in place of values."""

    def array(self) -> Array | None:
        """The values; None if they were left out.

        Raises:
            SampleError: they are not those of the datatype and the shape.
        """
        if self.raw is None:
            return None
        try:
            data = base64.b64decode(self.raw, validate=True)
            return decode_raw(self.datatype, self.shape, data)
        except (binascii.Error, TensorError) as error:
            raise SampleError(
                f"tensor '{self.name}' of a payload sample is broken: {error}; delete the sample"
            ) from error


class PayloadSample(StrictModel):
    """One request that was let in, and what became of it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    time: datetime
    """When the request had arrived."""
    request_id: str
    """The one in the reply and in the log."""
    trace_id: str = ""
    """In hexadecimal; empty if nobody traces it."""
    model: str
    version: int
    artifact: str = ""
    """The artifact that answered, where it is known."""
    protocol: Literal["rest", "grpc"]
    status: str
    """An HTTP status or a gRPC code name, as in `flambeau_requests_total`."""
    error: str = ""
    """The class of what went wrong. Its message, which may quote an input, is in the log alone."""
    duration_ms: float = Field(ge=0)
    inputs: tuple[SampledTensor, ...]
    outputs: tuple[SampledTensor, ...] = ()
    """None of a request that failed."""

    def to_line(self) -> bytes:
        """As JSON, with the end of the line."""
        return self.model_dump_json(exclude_none=True).encode() + b"\n"


def parse_sample(line: bytes, where: str) -> PayloadSample:
    """Reads a line.

    Args:
        line: of a file of samples.
        where: its file, for the error.

    Raises:
        SampleError: it is no sample.
    """
    try:
        return parse_as(PayloadSample, line, where, LIMITS)
    except DocumentError as error:
        raise SampleError(
            f"{where} holds what is no payload sample: {error}; "
            "delete the file, or read it with a newer flambeau"
        ) from error


def with_values(name: str, datatype: str, array: Array) -> SampledTensor:
    """A tensor with all its values."""
    raw = base64.b64encode(encode_raw(datatype, array)).decode()
    return SampledTensor(name=name, datatype=datatype, shape=array.shape, raw=raw)


def statistics_of(datatype: str, array: Array) -> Statistics | None:
    """What may be said of a tensor in place of its values.

    Args:
        datatype: the protocol's name.
        array: all or some of its elements.

    Returns:
        None if these are too few, none is finite, or the figures are beyond a float's range.
    """
    if array.size < MIN_ELEMENTS_OF_STATISTICS:
        return None
    numbers = _numbers(datatype, array)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        figures = [float(f(finite)) for f in (np.min, np.max, np.mean, np.std)]
    if not all(map(math.isfinite, figures)):
        return None
    minimum, maximum, mean, deviation = figures
    return Statistics(
        elements=numbers.size,
        not_finite=numbers.size - finite.size,
        minimum=minimum,
        maximum=maximum,
        mean=mean,
        deviation=deviation,
    )


def _numbers(datatype: str, array: Array) -> npt.NDArray[np.float64]:
    flat = array.ravel()
    if datatype == "BYTES":
        return np.array([len(as_bytes(element)) for element in flat], np.float64)
    if datatype == "BF16":  # the upper half of a float32
        flat = (flat.astype("<u4") << 16).view("<f4")
    return flat.astype(np.float64)
