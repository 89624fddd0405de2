"""A payload sample: inputs and outputs of one request. Pure rules.

In: tensors, and the parts of them that may be recorded. Out: a line of JSON, and back.

Rules: a line is data, and nothing in it is ever executed; a tensor without values has the reason
for it; statistics cover enough elements not to reveal the values themselves.
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

from flambeau.protocol.strict import StrictModel
from flambeau.protocol.tensors import Array, TensorError, as_bytes, decode_raw, encode_raw
from model_store.document import DocumentLimits, parse_as
from model_store.errors import DocumentError, SampleError

SCHEMA_VERSION: Literal[1] = 1
"""The newest schema of samples that this program reads, and the one it writes."""
MIN_ELEMENTS_OF_STATISTICS = 16
"""Elements below which statistics are omitted: minimum and maximum would reveal single values."""
PARTS = 8
"""Files that the limits of a model are divided into; no sample may be larger than one."""

LIMITS = DocumentLimits(2**30, 25_000)
"""Limits of a line, in which the values of a tensor are one string."""

LeftOut = Literal["redacted", "not kept", "text", "too large"]
"""Reason why values are omitted: the tensor's name is redacted; the rule keeps no values; they are
BYTES, which may be text by people; they exceed the size limit of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """Retention limits of the samples of one model."""

    kept_bytes: int
    kept_for: timedelta


class Statistics(StrictModel):
    """Statistics of the elements of a tensor; for BYTES, of their lengths in bytes."""

    elements: int
    """Number of elements evaluated; of a large tensor, a part."""
    not_finite: int
    """Number of these that are NaN or infinite; the other figures exclude them."""
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
    """Reason why `raw` is omitted."""
    statistics: Statistics | None = None
    """Statistics in place of the values."""

    def array(self) -> Array | None:
        """Returns the values; None if they were omitted.

        Raises:
            SampleError: they do not match the datatype and the shape.
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
    """One admitted request and its outcome."""

    schema_version: Literal[1] = SCHEMA_VERSION
    time: datetime
    """Time at which the request had arrived."""
    request_id: str
    """The id in the response and in the log."""
    trace_id: str = ""
    """Trace id in hexadecimal; empty if the request is not traced."""
    model: str
    version: int
    artifact: str = ""
    """The artifact that answered, if known."""
    protocol: Literal["rest", "grpc"]
    status: str
    """An HTTP status or a gRPC code name, as in `flambeau_requests_total`."""
    error: str = ""
    """Class of the error. Its message, which may quote an input, is only in the log."""
    duration_ms: float = Field(ge=0)
    inputs: tuple[SampledTensor, ...]
    outputs: tuple[SampledTensor, ...] = ()
    """Outputs; empty for a failed request. Of several answers, those of the first few in turn."""
    answers: int | None = Field(default=None, ge=0)
    """Number of answers, of a model that gives several or none; else omitted."""

    def to_line(self) -> bytes:
        """Returns the sample as JSON with a newline at the end."""
        return self.model_dump_json(exclude_none=True).encode() + b"\n"


def parse_sample(line: bytes, where: str) -> PayloadSample:
    """Reads a line.

    Args:
        line: a line of a file of samples.
        where: name of the file, for the error.

    Raises:
        SampleError: it is not a sample.
    """
    try:
        return parse_as(PayloadSample, line, where, LIMITS)
    except DocumentError as error:
        raise SampleError(
            f"{where} holds what is no payload sample: {error}; "
            "delete the file, or read it with a newer flambeau"
        ) from error


def with_values(name: str, datatype: str, array: Array) -> SampledTensor:
    """Returns a tensor with all its values."""
    raw = base64.b64encode(encode_raw(datatype, array)).decode()
    return SampledTensor(name=name, datatype=datatype, shape=array.shape, raw=raw)


def statistics_of(datatype: str, array: Array) -> Statistics | None:
    """Computes the statistics that replace the values of a tensor.

    Args:
        datatype: the protocol's datatype name.
        array: all or some of its elements.

    Returns:
        None if there are too few elements, none is finite, or a figure exceeds a float's range.
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
