"""Opens the files of artifacts, as they are published, in the runtimes that run them.

A runner uses one thread, and a GPU for FP16 if there is one.
"""

import importlib
from pathlib import Path

from flambeau.protocol.row_form import in_rows
from flambeau.protocol.signature import Signature
from model_store.artifact_kinds import ArtifactKind
from model_store.manifest import Precision
from training.exporters.exporter import exporter_of
from training.network.runner import Runner
from training.recipe.kinds.export_kinds import EXPORT_KINDS


def load_libraries(kind: ArtifactKind, precision: Precision) -> None:
    """Imports the libraries that run an artifact, except torch.

    Raises:
        ImportError: a library is not installed.
    """
    found = EXPORT_KINDS[kind]
    for module in (found.runtime, found.runtime_of_int8 if precision == "int8" else None):
        if module is not None:
            importlib.import_module(module)


def file_runner(
    kind: ArtifactKind, precision: Precision, path: Path, signature: Signature
) -> Runner:
    """Opens an exported file. The runner takes and gives rows (`protocol.row_form`).

    Raises:
        Exception: any error of the runtime for a file that it cannot open.
    """
    load_libraries(kind, precision)
    return in_rows(exporter_of(kind).open_file(path, precision, signature), signature)
