"""Lines about an imported version."""

from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from training.importing.import_model import Imported
    from training.importing.pipelines.publication import ImportedPipeline


def print_imported(imported: "Imported | ImportedPipeline") -> None:
    """Prints the table of the artifacts, if any, what breaks callers, the version and its alias."""
    from training.importing.import_model import Imported
    from training.reporting.report import print_table

    if isinstance(imported, Imported):
        print_table(imported.report, Console())
    if imported.broken:
        typer.echo(f"note: {imported.broken}")
    moved = f" → {imported.alias}" if imported.alias else "; no alias moves"
    typer.echo(f"published {imported.manifest.model} {imported.manifest.version_text}{moved}")
