"""Makes the exported program of a recipe's entry, the source of `.pt2` and AOTInductor."""

import torch
from torch import Tensor, nn

from training.exporters.exporter import ExportJob
from training.programs.exported_program import exported_program, weights_program
from training.recipe.parts.export_entries import QatEntry


def program_of(
    model: nn.Module, example: tuple[Tensor, ...], job: ExportJob
) -> torch.export.ExportedProgram:
    """Makes the program in the entry's precision; see `Exporter.write`."""
    entry, signature = job.entry, job.signature
    if isinstance(entry, QatEntry):
        from training.programs.quantization_aware import load_quantization_aware

        assert job.qat_weights is not None, "a recipe with such an entry trains for 8 bits"
        trained = load_quantization_aware(model, example, signature, job.qat_weights)
        program: torch.export.ExportedProgram = trained.converted(example, signature)
        return program
    if job.method == "weights":
        return weights_program(model, example, signature)
    return exported_program(model, example, signature, entry.precision, job.inputs)
