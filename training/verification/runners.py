"""Opens the files of artifacts, as they are published, in the runtimes that run them.

A runner uses one thread, and a GPU for FP16 if there is one.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

from flambeau.protocol.row_form import in_rows
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.artifact_kinds import ArtifactKind
from model_store.manifest import Precision
from training.exporters.exporter import exporter_of
from training.network.network_trial import shapes_text
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


def of_stated_sizes(run: Runner, signature: Signature, tell: Callable[[str], None]) -> Runner:
    """Returns a runner that tells of outputs whose sizes are not those of the signature.

    Args:
        run: takes and gives rows.
        signature: signature of the model.
        tell: receives a line for each.
    """
    specs = signature.in_rows().outputs

    def checked(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = run(inputs)
        for spec in specs:
            if spec.name in found and not spec.fits(found[spec.name].shape):
                tell(
                    f"output '{spec.name}' is {list(found[spec.name].shape)} for "
                    f"{shapes_text(inputs)}, and its signature is {spec.shape_words()}; sizes of "
                    "outputs that vary are learned from the examples, so give some of these sizes"
                )
        return found

    return checked
