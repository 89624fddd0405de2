"""Writes a checkpoint as a `.pt2` archive of torch.export: torch's own interchange format."""

from pathlib import Path

import torch


def write_pt2(program: torch.export.ExportedProgram, path: Path) -> None:
    """Writes an exported program.

    Args:
        program: model to write.
        path: output file, whose name ends in `.pt2`.
    """
    torch.export.save(program, path)
