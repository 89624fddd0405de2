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

from flambeau.exporting.archived_version.batch_inputs import BatchInputs
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
        self._inputs = BatchInputs(found["signature"])
        self._outputs = [Tensor(**one) for one in found["signature"]["outputs"]]
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
        given: dict[str, Array] = {}
        for one in self._inputs.tensors.values():
            tensor = self._utils.get_input_tensor_by_name(request, one.name)
            if tensor is not None:
                array = tensor.as_numpy()
                # One number a row is [rows, 1] for Triton.
                given[one.name] = array.reshape(array.shape[: len(one.shape)])
        return self._inputs.completed(given)

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
