"""TorchScript modules: entries of a recipe, and the record of the kind."""

from typing import Annotated, Literal

from training.recipe.kinds.export_kind import ExportKind
from training.recipe.parts.export_entries import KIND, Fp32Entry


class TorchScriptExport(Fp32Entry):
    """A TorchScript module, for hosts that accept no other kind. torch has deprecated it."""

    kind: Annotated[Literal["torchscript"], KIND] = "torchscript"
    method: Literal["trace", "script"] = "trace"
    """Capture of the model: tracing one run, or compiling its code. Take `script` for control flow
    that depends on the data, which a trace would freeze."""

    @property
    def takes_twin(self) -> bool:
        """False for `script`: the compiler needs the network's own code with its control flow."""
        return self.method != "script"


TORCHSCRIPT = ExportKind(
    entries=(TorchScriptExport,),
    exporter="training.exporters.torchscript",
    recorded=("torch",),
    speedups={},
    tried_by_default=False,
    note="note: torch has deprecated TorchScript and develops it no further; "
    "serve the ONNX artifacts where you can",
    triton_runtime='backend: "pytorch"\nplatform: "pytorch_libtorch"',
    triton_by_position=True,
)
