"""Python models: the record of the kind. Recipes have no entry of it: users bring the class."""

from typing import Annotated, Literal

from training.recipe.kinds.export_kind import ExportKind
from training.recipe.parts.export_entries import KIND, Fp32Entry


class PythonExport(Fp32Entry):
    """A Python model, published as it was brought."""

    kind: Annotated[Literal["python"], KIND] = "python"


PYTHON = ExportKind(
    entries=(PythonExport,),
    exporter="training.exporters.python_model",
    recorded=("numpy", "onnxruntime"),
    speedups={},
    tried_by_default=False,
)
