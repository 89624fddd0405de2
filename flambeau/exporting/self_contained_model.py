"""Runs an exported folder with Python code, in a process where that code has nothing of flambeau.

In: the folder. Out: the largest difference of its answers from the golden outputs.

Rules: rows run in batches of several sizes; code of the folder that imports a package of ours fails
as it would elsewhere.
"""

import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from pydantic import JsonValue

from flambeau.exporting import triton_stand_in
from flambeau.exporting.archived_version.batch_inputs import BatchInputs
from flambeau.exporting.export_request import Exported, ExportRequest
from flambeau.exporting.golden_check import check_answers
from flambeau.exporting.version_files import write_files
from flambeau.protocol.python_model import Context
from flambeau.protocol.tensors import Array, object_array
from flambeau.torchserve.self_contained import refuse_our_packages
from model_store.archives.archive_version import SOURCE_FILE, source_of
from model_store.arrays.golden_replay import replay_in_batches
from model_store.arrays.parity import Comparison
from model_store.golden import GoldenRows
from model_store.manifest import Artifact, FileEntry, PythonModel
from services.inference.backends.backend import Backend
from services.inference.backends.files_folder import FilesFolder
from services.inference.backends.verified_artifact import VerifiedArtifact


def write_folder(
    request: ExportRequest,
    artifact: Artifact,
    files: Mapping[str, bytes],
    path: Path,
    class_name: str = "",
    model_folder: str = "",
) -> Exported:
    """Writes an exported folder; has its Python code, if it has any, answer the golden rows.

    Args:
        request: the version and the limits.
        artifact: the artifact that is exported.
        files: the files by path.
        path: the new folder.
        class_name: class of this module that runs the code; empty where another runtime has the
            version's own file.
        model_folder: folder of the code within the new one.

    Raises:
        ExportCheckError, StoreError: see `check_answers`.
    """
    size_bytes = write_files(files, path)
    if not class_name:
        return Exported(path=path, size_bytes=size_bytes, artifact=artifact.name)
    return Exported(
        path=path,
        size_bytes=size_bytes,
        artifact=artifact.name,
        rows=request.manifest.golden.rows,
        max_abs_difference=_difference(request, artifact, class_name, path / model_folder),
    )


def _difference(request: ExportRequest, artifact: Artifact, class_name: str, folder: Path) -> float:
    """Compares the answers of an exported folder with a version's golden outputs."""
    signature = request.manifest.signature
    source = source_of(class_name, __name__)
    file = FileEntry(
        file=SOURCE_FILE, sha256=hashlib.sha256(source).hexdigest(), size_bytes=len(source)
    )
    args: dict[str, JsonValue] = {
        "folder": str(folder.resolve()),
        "signature": signature.model_dump(mode="json"),
    }
    entry = artifact.model_copy(
        update={
            "name": "python",
            "kind": "python",
            "file": file,
            "weights": None,
            "python": PythonModel(name=class_name, args=args),
        }
    )
    opened = VerifiedArtifact(
        entry=entry,
        signature=signature.in_rows().model_copy(update={"sequence": None, "padding": None}),
        data=source,
        folder=FilesFolder.of({SOURCE_FILE: source}),
    )
    return check_answers(request, artifact, "the export", opened, _replayed)


def _replayed(
    backend: Backend, request: ExportRequest, artifact: Artifact, golden: GoldenRows
) -> list[Comparison]:
    return replay_in_batches(
        backend.run,
        golden,
        max_batch_size=request.manifest.signature.max_batch_size,
        gates=artifact.verification.tolerance.single_gates,
    )


class ExportedTritonModel:
    """The `model.py` of one version of a Triton repository."""

    def load(self, context: Context) -> None:
        """Opens and initializes the model, as Triton's Python backend does."""
        folder = Path(context.args["folder"])
        refuse_our_packages(str(folder), "Triton")
        sys.modules["triton_python_backend_utils"] = triton_stand_in
        self._signature: dict[str, Any] = context.args["signature"]
        self._is_plain = BatchInputs(self._signature).is_plain
        config = {
            "max_batch_size": self._signature["max_batch_size"] if self._is_plain else 0,
            "parameters": {"threads": {"string_value": "1"}},
        }
        self._model = _module(folder / "model.py").TritonPythonModel()
        self._model.initialize({"model_config": json.dumps(config), "model_instance_kind": "CPU"})

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs rows, [rows, ...], each as a request of one row.

        Raises:
            ValueError: the model refuses a row.
        """
        count = len(next(iter(inputs.values())))
        requests = [
            {
                one["name"]: _with_batch(inputs[one["name"]][row, ...], one, self._is_plain)
                for one in self._signature["inputs"]
                if one["name"] in inputs
            }
            for row in range(count)
        ]
        found: dict[str, list[Array]] = {one["name"]: [] for one in self._signature["outputs"]}
        for row, response in enumerate(self._model.execute(requests)):
            if response.error is not None:
                raise ValueError(f"row {row}: {response.error.message}")
            tensors = {one.name: one.as_numpy() for one in response.tensors}
            for one in self._signature["outputs"]:
                found[one["name"]].append(_without_batch(tensors[one["name"]], one))
        return {name: _stacked(arrays) for name, arrays in found.items()}


class ExportedMlflowModel:
    """The loader of one MLflow model."""

    def load(self, context: Context) -> None:
        """Opens the model, as MLflow's `python_function` does."""
        folder = Path(context.args["folder"])
        refuse_our_packages(str(folder), "MLflow")
        sys.path.insert(0, str(folder / "code"))
        self._signature: dict[str, Any] = context.args["signature"]
        self._is_plain = BatchInputs(self._signature).is_plain
        module = importlib.import_module("archived_version.mlflow_model")
        self._model = module._load_pyfunc(str(folder / "data"))

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs rows, [rows, ...]: together if all tensors have a batch, and else each alone."""
        if self._is_plain:
            found: dict[str, Array] = self._model.predict(dict(inputs))
            return found
        specs = {one["name"]: one for one in self._signature["inputs"]}
        rows = [
            self._model.predict(
                {n: _with_batch(array[row, ...], specs[n], False) for n, array in inputs.items()}
            )
            for row in range(len(next(iter(inputs.values()))))
        ]
        return {
            one["name"]: _stacked([_without_batch(row[one["name"]], one) for row in rows])
            for one in self._signature["outputs"]
        }


def _with_batch(row: Array, spec: Mapping[str, Any], is_plain: bool) -> Array:
    """Returns one row as a request has it."""
    axis = spec.get("batch_axis", 0)
    array = row if axis is None else np.expand_dims(row, axis)
    return array.reshape(1, 1) if is_plain and array.ndim == 1 else array


def _without_batch(array: Array, spec: Mapping[str, Any]) -> Array:
    """Returns the output of one row without the batch."""
    axis = spec.get("batch_axis", 0)
    whole = array.reshape(array.shape[: len(spec["shape"])])
    return whole if axis is None else np.moveaxis(whole, axis, 0)[0, ...]


def _stacked(arrays: list[Array]) -> Array:
    if arrays[0].dtype.hasobject and not arrays[0].ndim:
        return object_array([one.item() for one in arrays])
    return np.stack(arrays)


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported_model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
