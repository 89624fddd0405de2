"""Lines about an imported version."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from model_store.manifest import Manifest
    from training.importing.import_model import Imported
    from training.importing.pipelines.publication import ImportedPipeline
    from training.reporting.report import Report


@dataclass(frozen=True, slots=True)
class ImportedVersion:
    """An imported version, as the command describes it."""

    manifest: "Manifest"
    report: "Report | None"
    """Figures of its artifacts; None for a pipeline."""
    summary: dict[str, Any]
    """Values of JSON."""
    alias: str | None
    """Alias that moved to it; None if none did."""
    notes: tuple[str, ...] = ()
    """What breaks callers of the version before, and what else there is to know."""
    place: str = ""
    """Server that it was pushed to; empty for none."""

    @classmethod
    def of(cls, imported: "Imported | ImportedPipeline") -> "ImportedVersion":
        """Describes a version in a store."""
        notes = tuple(filter(None, [imported.broken]))
        report = getattr(imported, "report", None)
        return cls(imported.manifest, report, imported.summary(), imported.alias, notes)

    def at(self, place: str, alias: str | None, notes: Iterable[str]) -> "ImportedVersion":
        """Describes the same version at a server, with what this said of it."""
        told = tuple(filter(None, notes))
        changes = {"store": place, "alias": alias, "notes": [*self.summary["notes"], *told]}
        summary = {**self.summary, **changes}
        return replace(self, summary=summary, alias=alias, notes=(*self.notes, *told), place=place)


def print_imported(version: ImportedVersion) -> None:
    """Prints the table of the artifacts, if any, the notes, the version and its alias."""
    from training.reporting.report import print_table

    if version.report is not None:
        print_table(version.report, Console())
    for note in version.notes:
        typer.echo(f"note: {note}")
    moved = f" → {version.alias}" if version.alias else "; no alias moves"
    where = f", at {version.place}" if version.place else ""
    typer.echo(f"published {version.manifest.model} {version.manifest.version_text}{moved}{where}")
