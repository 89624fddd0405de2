"""A version as a model of Triton's Python backend.

In: requests as Triton's batcher hands them over, each some rows. Out: for each request the outputs,
or an error, for that request alone.

Rule: requests run together if their inputs have the same sizes; nothing is padded.
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
from flambeau.exporting.archived_version.tensor import Array, RefusedError, Tensor

THREADS = "threads"
"""Parameter of the configuration: threads of one run."""

Rows = tuple[int, Mapping[str, Array]]
"""Place of a request among those of a call, and its inputs."""


class VersionModel:
    """The model of a folder, which a subclass names."""

    folder: Path

    def initialize(self, args: Mapping[str, str]) -> None:
        """Opens the version.

        Args:
            args: Triton's: `model_config` as JSON, kind and number of the instance's device.
        """
        import triton_python_backend_utils  # type: ignore[import-not-found]

        self._utils: Any = triton_python_backend_utils
        found = json.loads((self.folder / DESCRIPTION).read_bytes())
        self._signature: dict[str, Any] = found["signature"]
        self._inputs = [Tensor(**one) for one in self._signature["inputs"]]
        self._outputs = [Tensor(**one) for one in self._signature["outputs"]]
        self._padding: dict[str, Any] = self._signature.get("padding") or {}
        config = json.loads(args["model_config"])
        self._batches = int(config["max_batch_size"]) > 0
        is_gpu = args.get("model_instance_kind") == "GPU"
        gpu = int(args["model_instance_device_id"]) if is_gpu else None
        threads = int(config["parameters"][THREADS]["string_value"])
        self._run = open_version(self.folder, found, self._outputs, Processor(gpu, threads))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Returns a response for each request."""
        answers: list[Any] = [None] * len(requests)
        groups: dict[object, list[Rows]] = {}
        for place, request in enumerate(requests):
            try:
                inputs = self._inputs_of(request)
            except RefusedError as error:
                answers[place] = self._refusal(error)
                continue
            shapes = tuple((name, array.shape[1:]) for name, array in inputs.items())
            key = shapes if self._batches else place
            groups.setdefault(key, []).append((place, inputs))
        for group in groups.values():
            self._answer(group, answers)
        return answers

    def _inputs_of(self, request: Any) -> dict[str, Array]:
        inputs: dict[str, Array] = {}
        for one in self._inputs:
            given = self._utils.get_input_tensor_by_name(request, one.name)
            if given is not None:
                array = given.as_numpy()
                # One number a row is [rows, 1] for Triton.
                inputs[one.name] = array.reshape(array.shape[: len(one.shape)])
        if self._padding:
            self._check_length(inputs)
        for one in self._inputs:
            if one.name not in inputs and not one.optional:
                raise RefusedError(f"input '{one.name}' is missing")
            if one.name in inputs:
                self._check_sizes(one, inputs[one.name])
        return inputs

    def _check_sizes(self, one: Tensor, array: Array) -> None:
        row = [size for axis, size in enumerate(array.shape) if axis != one.batch_axis]
        for limits in (self._signature.get("dynamic", {}), self._signature.get("limits", {})):
            if one.name in limits:
                one.check_sizes(row, limits[one.name])

    def _check_length(self, inputs: dict[str, Array]) -> None:
        """Checks the length of rows; adds their mask and their numbers of elements."""
        axes = self._padding["inputs"]
        found = {inputs[name].shape[axis] for name, axis in axes.items() if name in inputs}
        most = self._padding["buckets"][-1]
        if len(found) != 1 or not 1 <= min(found) <= most:
            raise RefusedError(f"the inputs have lengths {sorted(found)}; give one of 1 to {most}")
        rows, specs = len(next(iter(inputs.values()))), {one.name: one for one in self._inputs}
        mask, count = self._padding.get("mask"), self._padding.get("lengths")
        if mask is not None and mask not in inputs:
            inputs[mask] = np.ones((rows, min(found)), specs[mask].dtype)
        if count is not None and count not in inputs:
            inputs[count] = np.full(rows, min(found), specs[count].dtype)

    def _answer(self, group: Sequence[Rows], answers: list[Any]) -> None:
        """Runs requests together; if that fails, each alone, so that a bad one fails alone."""
        try:
            found = self._run_together([inputs for _, inputs in group])
        except MemoryError:
            raise
        except Exception as error:
            if len(group) > 1 and not isinstance(error, FaultyModelError):
                for one in group:
                    self._answer([one], answers)
                return
            if not isinstance(error, ValueError):  # by which Python models refuse rows
                logging.getLogger(__name__).error("a request failed", exc_info=error)
            for place, _ in group:
                answers[place] = self._refusal(error)
            return
        for (place, _), outputs in zip(group, found, strict=True):
            tensors = [self._utils.Tensor(name, array) for name, array in outputs.items()]
            answers[place] = self._utils.InferenceResponse(tensors)

    def _run_together(self, requests: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        names = list(requests[0])
        if not self._batches:
            outputs = self._run(requests[0])
            return [{one.name: np.array(outputs[one.name], order="C") for one in self._outputs}]
        outputs = self._run(
            {name: np.concatenate([one[name] for one in requests]) for name in names}
        )
        ends = np.cumsum([len(one[names[0]]) for one in requests])[:-1]
        parts: list[dict[str, Array]] = [{} for _ in requests]
        for one in self._outputs:
            array = np.asarray(outputs[one.name])
            whole = array.reshape(-1, 1) if array.ndim == 1 else array
            for part, own in zip(parts, np.split(whole, ends), strict=True):
                part[one.name] = np.ascontiguousarray(own)
        return parts

    def _refusal(self, error: Exception) -> Any:
        text = " ".join(str(error).split())[:1000] or type(error).__name__
        return self._utils.InferenceResponse(error=self._utils.TritonError(text))
