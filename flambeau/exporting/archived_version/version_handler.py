"""The handler of an archive: `handle`, as TorchServe calls it.

In: a batch of requests, each one row. A row is a JSON object of values by input name, or the value
of the only input; or parts by input name. Out: for each request a JSON object of values by output
name; or status 400 and the reason, for that request alone.

Rule: rows run together if they have the same inputs and sizes, and equal values of inputs without a
batch; nothing is padded.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flambeau.exporting.archived_version.networks import Processor
from flambeau.exporting.archived_version.opened_version import DESCRIPTION, open_version
from flambeau.exporting.archived_version.python_code import FaultyModelError
from flambeau.exporting.archived_version.row_values import NPY, array_of, from_json, plain_of
from flambeau.exporting.archived_version.tensor import Array, RefusedError, Tensor

JSON = "application/json"

Answer = dict[str, Any] | Exception
"""Values by output name, or the reason why there are none."""


class Version:
    """The version that an archive has.

    Args:
        folder: folder of the archive's files.
        processor: what runs its network.
    """

    def __init__(self, folder: Path, processor: Processor) -> None:
        self.description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_bytes())
        self._signature: dict[str, Any] = self.description["signature"]
        self._inputs = {one["name"]: Tensor(**one) for one in self._signature["inputs"]}
        self._outputs = [Tensor(**one) for one in self._signature["outputs"]]
        self._padding: dict[str, Any] = self._signature.get("padding") or {}
        self._has_batch = any(one.batch_axis is not None for one in self._inputs.values())
        self._run = open_version(folder, self.description, self._outputs, processor)

    def answers(self, requests: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Returns an answer for each request."""
        found: list[Answer] = [{}] * len(requests)
        rows: dict[int, dict[str, Array]] = {}
        groups: dict[object, list[int]] = {}
        for place, request in enumerate(requests):
            try:
                rows[place] = self._row(request)
            except RefusedError as error:
                # Without the traceback, whose frames keep all that the body was parsed into.
                found[place] = RefusedError(str(error))
            else:
                groups.setdefault(self._key(place, rows[place]), []).append(place)
        most = int(self._signature["max_batch_size"])
        for group in groups.values():
            for start in range(0, len(group), most):
                places = group[start : start + most]
                batch = self._batch([rows[place] for place in places])
                for place, answer in zip(places, batch, strict=True):
                    found[place] = answer
        return found

    def _batch(self, rows: Sequence[Mapping[str, Array]]) -> list[Answer]:
        """Runs rows together; if that fails, each alone, so that a bad one fails alone."""
        try:
            outputs = self._run({name: self._stacked(name, rows) for name in rows[0]})
            return [
                {one.name: plain_of(_of_row(outputs[one.name], one, row)) for one in self._outputs}
                for row in range(len(rows))
            ]
        except MemoryError:
            raise
        except FaultyModelError as error:
            return [error] * len(rows)
        except Exception as error:
            if "CUDA" in str(error):  # TorchServe's rule: the device failed, and not the rows
                raise
            return [self._batch([row])[0] for row in rows] if len(rows) > 1 else [error]

    def _stacked(self, name: str, rows: Sequence[Mapping[str, Array]]) -> Array:
        axis = self._inputs[name].batch_axis
        return rows[0][name] if axis is None else np.stack([row[name] for row in rows], axis)

    def _row(self, request: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the inputs of a request, each without the batch."""
        row: dict[str, Array] = {}
        for name, value in self._values(request).items():
            if name not in self._inputs:
                raise RefusedError(
                    f"there is no input '{str(name)[:80]}'; give {', '.join(self._inputs)}"
                )
            row[name] = array_of(value, self._inputs[name])
        if self._padding:
            self._check_length(row)
        for one in self._inputs.values():
            if one.name not in row and not one.optional:
                raise RefusedError(f"input '{one.name}' is missing")
        for limits in (self._signature.get("dynamic", {}), self._signature.get("limits", {})):
            for name in limits.keys() & row.keys():
                self._inputs[name].check_sizes(row[name].shape, limits[name])
        return row

    def _values(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the values of a request by input name."""
        part = next(iter(request), None)
        if len(request) != 1 or part not in ("body", "data"):
            return request
        value = request[part]
        needed = [one for one in self._inputs.values() if not one.optional]
        only = needed[0] if len(needed) == 1 else None
        is_text = only is not None and only.datatype == "BYTES"
        is_array = isinstance(value, bytes | bytearray) and value.startswith(NPY)
        if isinstance(value, bytes | bytearray | str) and not is_text and not is_array:
            value = from_json(value)
        if isinstance(value, dict) and value.keys() != {"b64"}:
            return value
        if only is None:
            raise RefusedError(f"the body names no input; give {', '.join(self._inputs)}")
        return {only.name: value}

    def _check_length(self, row: dict[str, Array]) -> None:
        """Checks the length of a row; adds its mask and its number of elements."""
        axes = self._padding["inputs"]
        lengths = {row[name].shape[axis - 1] for name, axis in axes.items() if name in row}
        if len(lengths) != 1:
            raise RefusedError(f"the inputs have lengths {sorted(lengths)}; give all the same one")
        (length,), most = lengths, self._padding["buckets"][-1]
        if not 1 <= length <= most:
            raise RefusedError(f"the inputs have length {length}; give 1 to {most}")
        mask, count = self._padding.get("mask"), self._padding.get("lengths")
        if mask is not None:
            row.setdefault(mask, np.ones(length, self._inputs[mask].dtype))
            if len(row[mask]) != length:
                raise RefusedError(f"'{mask}' has length {len(row[mask])}, and the inputs {length}")
        if count is not None:
            row.setdefault(count, np.array(length, self._inputs[count].dtype))

    def _key(self, place: int, row: Mapping[str, Array]) -> object:
        """Returns what the rows of one batch have in common."""
        if not self._has_batch:
            return place
        shared = [
            row[one.name].tolist() if one.datatype == "BYTES" else row[one.name].tobytes()
            for one in self._inputs.values()
            if one.batch_axis is None and one.name in row
        ]
        return tuple((name, row[name].shape) for name in sorted(row)), str(shared)


_version: Version | None = None


def handle(data: Sequence[Mapping[str, Any]] | None, context: Any) -> list[bytes] | None:
    """Opens the version at the first call, which has no data; then answers batches.

    Args:
        data: for each request its parts by name; `body` or `data` for a raw body.
        context: TorchServe's.
    """
    global _version
    if _version is None:
        properties, config = context.system_properties, context.model_yaml_config or {}
        threads = int((config.get("handler") or {}).get("threads", 1))
        processor = Processor(properties.get("gpu_id"), threads)
        _version = Version(Path(properties["model_dir"]), processor)
    if data is None:
        return None
    if context.get_request_header(0, "describe") == "True":
        return [json.dumps(_version.description).encode()] * len(data)
    if context.get_request_header(0, "explain") == "True":
        found: list[Answer] = [RefusedError("this model explains nothing")] * len(data)
    else:
        found = _version.answers(data)
    return [_body(answer, context, place) for place, answer in enumerate(found)]


def _body(answer: Answer, context: Any, place: int) -> bytes:
    """Returns the body of an answer; sets its type and status."""
    context.set_response_content_type(place, JSON)
    if not isinstance(answer, Exception):
        return json.dumps(answer).encode()
    code, kind = 400, "BadRequestException"
    if not isinstance(answer, ValueError):  # by which Python models refuse rows, too
        code, kind = 500, "InternalServerException"
        logging.getLogger(__name__).error("a request failed", exc_info=answer)
    context.set_response_status(code=code, phrase="", idx=place)
    text = " ".join(str(answer).split())[:1000]
    return json.dumps({"code": code, "type": kind, "message": text}).encode()


def _of_row(array: Array, tensor: Tensor, row: int) -> Array:
    """Returns the part of an output that belongs to a row: the whole, if it has no batch."""
    axis = tensor.batch_axis
    return array if axis is None else np.moveaxis(array, axis, 0)[row, ...]
