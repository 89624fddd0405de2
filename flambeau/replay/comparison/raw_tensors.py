"""Answers of inference whose tensors are raw bytes behind their JSON.

Source: Open Inference Protocol v2, Triton's extension for binary tensor data: the header
`inference-header-content-length` has the length of the JSON, and the parameter `binary_data_size`
of each output that of its bytes, in order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import DATATYPES, bf16_numbers
from flambeau.replay.comparison.findings import (
    BY_TOLERANCE,
    Findings,
    Rules,
    first_unlike,
)
from flambeau.replay.comparison.json_values import parse_json
from flambeau.replay.records import Answer

JSON_LENGTH_HEADER = "inference-header-content-length"
FRACTIONS = frozenset(("FP16", "BF16", "FP32", "FP64"))

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RawTensor:
    """An output: its name, datatype and bytes."""

    name: str
    datatype: str
    data: bytes


@dataclass(frozen=True, slots=True)
class BinaryAnswer:
    """The JSON of such an answer, and its raw outputs in order."""

    document: Any
    tensors: tuple[RawTensor, ...]


def parse_binary(answer: Answer, body: bytes) -> BinaryAnswer | None:
    """Splits an answer; None if it is no such answer, or contradicts itself."""
    try:
        length = int(answer.header(JSON_LENGTH_HEADER))
        document = parse_json(body[:length])
        tensors, position = [], length
        for output in document["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                continue
            end = position + int(size)
            name, datatype = str(output["name"]), str(output["datatype"])
            tensors.append(RawTensor(name, datatype, body[position:end]))
            if end < position or end > len(body) or _item_bytes(datatype, int(size)) == 0:
                return None
            position = end
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    is_whole = 0 <= length <= len(body) and position == len(body)
    return BinaryAnswer(document, tuple(tensors)) if is_whole else None


def compare_tensor(found: Findings, old: RawTensor, new: RawTensor) -> None:
    """Adds what differs between two outputs of the same name, datatype and size."""
    if old.data == new.data:
        return
    if old.datatype not in FRACTIONS:
        at = first_unlike(old.data, new.data)
        shown = (f"0x{tensor.data[at : at + 8].hex()}" for tensor in (old, new))
        found.add("body", f"output {old.name}, byte {at}", *shown)
        return
    numbers, others = _numbers(old), _numbers(new)
    unlike = np.flatnonzero(_unlike(found, numbers, others))
    for index in unlike[:1]:
        found.add("body", f"output {old.name}[{index}]", str(numbers[index]), str(others[index]))
    found.count += max(len(unlike) - 1, 0)


def _unlike(found: Findings, old: Numbers, new: Numbers) -> npt.NDArray[np.bool_]:
    """Returns which numbers differ by more than the tolerance."""
    rules: Rules = found.rules
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    finite = np.isfinite(old) & np.isfinite(new)
    with np.errstate(all="ignore"):
        difference = np.where(finite, np.abs(old - new), 0.0)
        close = finite & (difference <= rules.absolute + rules.relative * np.abs(old))
    largest = float(difference.max(initial=0.0))
    found.largest = max(found.largest, min(largest, float(np.finfo(np.float64).max)))
    if bool(np.any(close & ~same)):
        found.by_rules.add(BY_TOLERANCE)
    return np.asarray(~(same | close))


def _numbers(tensor: RawTensor) -> Numbers:
    values = np.frombuffer(tensor.data, DATATYPES[tensor.datatype])
    numbers = bf16_numbers(values) if tensor.datatype == "BF16" else values
    return numbers.astype(np.float64)


def _item_bytes(datatype: str, size: int) -> int:
    """Returns the bytes of an element; 0 if the datatype is unknown, or the size no multiple."""
    if datatype == "BYTES":
        return 1
    item = DATATYPES[datatype].itemsize
    return item if size % item == 0 else 0
