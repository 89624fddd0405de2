"""Imports what a caller's process has captured.

In: a folder with a request. Out: one JSON object a line: `{"step": text}` for each step, then
`{"published": {...}}` or `{"error": text}`.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from flambeau.protocol.signature import SignatureError
from flambeau.publishing.staged_files import FILES
from model_store.errors import StoreError
from training.errors import TrainingError
from training.importing.import_model import import_model
from training.importing.original import Original
from training.importing.pipelines.request import publish_request, read_pipeline_request
from training.importing.request import ExampleRows, ImportRequest, read_request
from training.importing.sources.python_source import python_original
from training.process.orphans import ending_orphans
from training.process.root_cause import root_cause


def publish_requested(folder: Path) -> int:
    """Imports the model, or publishes the pipeline, of a request. Returns the exit code."""
    try:
        published = _published(folder)
    except (TrainingError, StoreError, SignatureError, OSError) as error:
        _tell({"error": f"nothing was published: {error}"})
        return 1
    except Exception as error:  # a bug: its traceback goes to the caller's standard error
        _tell({"error": f"nothing was published: {root_cause(error)}"})
        raise
    _tell({"published": published})
    return 0


@ending_orphans()
def _published(folder: Path) -> dict[str, Any]:
    """Imports or publishes what the folder has; returns the fields of `PublishedVersion`."""
    if (pipeline := read_pipeline_request(folder)) is not None:
        return publish_request(pipeline, folder, _say, _signer())
    request, examples = read_request(folder)
    with tempfile.TemporaryDirectory(prefix="flambeau-version-", dir=folder) as version:
        originals = _originals(request, examples, folder)
        found = import_model(originals, examples, request, Path(version), _say, _signer())
    return found.summary()


def _originals(request: ImportRequest, examples: ExampleRows, folder: Path) -> list[Original]:
    if request.python is not None:
        python = request.python
        original = python_original(
            folder / python.file,
            python.class_name,
            python.args,
            {name: folder / FILES / name for name in python.files},
            [examples.inputs, *examples.others],
            folder,
            max_batch_size=python.max_batch_size,
            process=python.process,
        )
        return [replace(original, source=request.source)]
    assert request.signature is not None, "only a Python model is without"
    return [
        Original(
            kind=one.kind,
            precision=one.precision,
            file=folder / one.file,
            weights_file=None if one.weights_file is None else folder / one.weights_file,
            signature=request.signature,
            source=request.source,
        )
        for one in request.originals
    ]


def _signer() -> Any:
    """Returns the signing function of the only key in the key folder; None without one."""
    from model_store.signatures.key_folder import KeyFolder

    key = KeyFolder("").signing_key("")
    if key is None:
        return None
    from model_store.signatures.signing import signer_with

    return signer_with(key)


def _say(text: str) -> None:
    _tell({"step": text})


def _tell(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)
