"""Has the handler of a written archive answer a version's golden rows, in a process of its own.

In: the archive, as a server has read it; the version. Out: the largest difference from the golden
outputs; or an error that says which rows differ.

Rules: a code file of the archive that imports a package of flambeau fails, as it would elsewhere;
rows are sent in both forms, and in batches of several sizes; the version's own tolerance decides;
time and memory have limits.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from flambeau.exporting.archived_version.row_values import array_of, plain_of
from flambeau.exporting.archived_version.tensor import RefusedError, Tensor
from flambeau.exporting.export_request import ExportRequest
from flambeau.exporting.golden_check import AnswerError, check_answers
from flambeau.protocol.tensors import Array, object_array
from model_store.archives.archive_settings import RunSettings, is_imported
from model_store.archives.archive_version import SOURCE_FILE, artifact_of, source_of
from model_store.archives.handler_calls import (
    BODY,
    REQUEST,
    RESPONSE,
    HandlerAnswer,
    HandlerRequest,
    Part,
    decode_answer,
    encode_request,
    signature_of,
)
from model_store.archives.model_archive import ModelArchive
from model_store.arrays.golden_replay import replay_in_batches
from model_store.arrays.parity import Comparison
from model_store.golden import GoldenRows
from model_store.manifest import Artifact, FileEntry
from services.inference.backends.backend import Backend
from services.inference.backends.files_folder import FilesFolder
from services.inference.backends.verified_artifact import VerifiedArtifact

JSON_BYTES = 2**22
"""Golden inputs that are sent as JSON, too, which takes several times their size."""
_CLASS = "SelfContainedArchive"

Encode = Callable[[Mapping[str, Array], int], list[Part]]
"""Returns the parts of the request of one row."""


def check_archive(archive: ModelArchive, request: ExportRequest, artifact: Artifact) -> float:
    """Compares the answers of an archive with a version's golden outputs.

    Args:
        archive: the archive.
        request: the version and the limits.
        artifact: the artifact that the archive has.

    Returns:
        The largest absolute difference.

    Raises:
        ExportCheckError: the handler fails, takes too long, or gives other answers.
        StoreError: the version's golden rows cannot be read.
    """
    opened = _opened(archive, request)
    return check_answers(request, artifact, "the archive", opened, _replayed)


def _opened(archive: ModelArchive, request: ExportRequest) -> VerifiedArtifact:
    rows = request.manifest.signature.max_batch_size
    source = source_of(_CLASS, "flambeau.torchserve.self_contained")
    digest = hashlib.sha256(source).hexdigest()
    file = FileEntry(file=SOURCE_FILE, sha256=digest, size_bytes=len(source))
    run = RunSettings(batch_size=rows)
    return VerifiedArtifact(
        entry=artifact_of(archive, request.manifest.model, run, file, _CLASS),
        signature=signature_of(rows),
        data=source,
        folder=FilesFolder.of({SOURCE_FILE: source}),
    )


def _replayed(
    backend: Backend, request: ExportRequest, artifact: Artifact, golden: GoldenRows
) -> list[Comparison]:
    signature, tolerance = request.manifest.signature, artifact.verification.tolerance
    replay = partial(
        replay_in_batches, max_batch_size=signature.max_batch_size, gates=tolerance.single_gates
    )
    if is_imported(artifact):
        return replay(partial(_bodies, backend), golden)
    outputs = [Tensor(**spec.model_dump()) for spec in signature.outputs]
    found = replay(partial(_rows, backend, outputs, _as_parts), golden)
    some = _first_rows(golden, JSON_BYTES)
    return (
        found if some is None else found + replay(partial(_rows, backend, outputs, _as_json), some)
    )


def _bodies(backend: Backend, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Runs bodies of requests; returns those of the answers."""
    bodies = [[Part(BODY, "", body)] for body in inputs[BODY].tolist()]
    return {BODY: object_array([bytes(one.body) for one in _answers(backend, bodies)])}


def _rows(
    backend: Backend, outputs: Sequence[Tensor], encode: Encode, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Runs rows, each as a request; returns the outputs, [rows, ...]."""
    count = len(next(iter(inputs.values())))
    found: list[list[Array]] = []
    for answer in _answers(backend, [encode(inputs, row) for row in range(count)]):
        try:
            values = json.loads(bytes(answer.body))
            found.append([array_of(values[one.name], one) for one in outputs])
        except (ValueError, KeyError, TypeError, RefusedError) as error:
            raise AnswerError(f"an answer has not the outputs of the version: {error}") from error
    return {one.name: np.stack([row[place] for row in found]) for place, one in enumerate(outputs)}


def _answers(backend: Backend, requests: Sequence[list[Part]]) -> list[HandlerAnswer]:
    elements = [
        encode_request(HandlerRequest(id=str(row), parts=parts))
        for row, parts in enumerate(requests)
    ]
    outputs = backend.run({REQUEST: object_array(elements)})
    answers = [decode_answer(element) for element in outputs[RESPONSE].tolist()]
    for row, answer in enumerate(answers):
        if answer.failure or answer.status != 200:
            text = answer.failure or bytes(answer.body).decode(errors="replace")
            raise AnswerError(f"row {row} has status {answer.status}: {text[:500]}")
    return answers


def _as_parts(inputs: Mapping[str, Array], row: int) -> list[Part]:
    """Returns a row as parts by input name: arrays in NumPy's format, and bytes."""
    parts = []
    for name, array in inputs.items():
        value = array[row, ...]
        if not value.dtype.hasobject:
            file = io.BytesIO()
            np.save(file, np.ascontiguousarray(value).reshape(value.shape), allow_pickle=False)
            parts.append(Part(name, "", file.getvalue()))
        elif value.ndim:
            parts.append(Part(name, "application/json", json.dumps(plain_of(value)).encode()))
        else:
            parts.append(Part(name, "", array[row]))
    return parts


def _as_json(inputs: Mapping[str, Array], row: int) -> list[Part]:
    """Returns a row as a JSON object of values by input name."""
    values = {name: plain_of(array[row, ...]) for name, array in inputs.items()}
    return [Part(BODY, "application/json", json.dumps(values).encode())]


def _first_rows(golden: GoldenRows, most_bytes: int) -> GoldenRows | None:
    """Returns the first golden rows, up to a size; None if one row is larger."""
    size_bytes = sum(_size_of(array[:1]) for array in golden.inputs.values())
    rows = min(most_bytes // max(size_bytes, 1), golden.rows)
    inputs, outputs = (
        {name: array[:rows] for name, array in arrays.items()}
        for arrays in (golden.inputs, golden.outputs)
    )
    return GoldenRows(inputs, outputs) if rows else None


def _size_of(array: Array) -> int:
    return sum(map(len, array.ravel().tolist())) if array.dtype.hasobject else array.nbytes
