"""Lines about an imported version."""

from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from model_store.manifest import Manifest
    from training.importing.import_model import Imported


def print_imported(imported: "Imported") -> None:
    """Prints the table of the artifacts, and the version."""
    from training.reporting.report import print_table

    print_table(imported.report, Console())
    print_version(imported.manifest, imported.request.alias)


def print_version(manifest: "Manifest", alias: str | None) -> None:
    """Prints a published version, and the alias that moved to it."""
    moved = f" → {alias}" if alias else "; no alias moves"
    typer.echo(f"published {manifest.model} {manifest.version_text}{moved}")
