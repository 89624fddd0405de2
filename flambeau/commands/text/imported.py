"""Lines about an imported version."""

from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from training.importing.import_model import Imported


def print_imported(imported: "Imported") -> None:
    """Prints the table of the artifacts, and the version."""
    from training.reporting.report import print_table

    print_table(imported.report, Console())
    manifest, alias = imported.manifest, imported.request.alias
    moved = f" → {alias}" if alias else "; no alias moves"
    typer.echo(f"published {manifest.model} {manifest.version_text}{moved}")
