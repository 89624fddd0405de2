"""`flambeau models export`: writes a version in the format of another server or tool."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.ended_by_sigterm import ended_by_sigterm
from flambeau.commands.options.keys import KeysFolder
from flambeau.commands.options.model import Version, named_version, versions_that_begin
from flambeau.commands.options.store import (
    DEFAULT_STORE,
    STORE_FAILURES,
    StoreUrl,
    existing_store,
)
from flambeau.commands.places.store_place import StorePlace
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import size_text
from model_store.host.install_advice import needing
from model_store.host.memory_limit import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flambeau.exporting.export_request import Exported
    from model_store.store import ModelStore

ModelVersion = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL/VERSION",
        help="Version to export, such as digits/3 or digits@production.",
        autocompletion=versions_that_begin,
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="mar: a TorchServe archive; triton: a model of a Triton repository; oci-layout: an "
        "OCI image layout; mlflow: an MLflow model.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="PATH",
        help="File or folder to write; of triton, the repository that the folder MODEL lies in.",
        show_default="MODEL, with the format's suffix, here",
    ),
]
Every = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Write the production version of every model into a Triton repository; folders that "
        "have it stay as they are.",
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace what exists, if it has this format."),
]
ArtifactName = Annotated[
    str,
    typer.Option(
        "--artifact",
        metavar="NAME",
        help="Artifact to export.",
        show_default="the fastest that the format can have",
    ),
]
MaxBatchDelay = Annotated[
    int,
    typer.Option(
        metavar="MS",
        min=1,
        max=10_000,
        help="Longest wait of TorchServe for a batch; with 0 its batches would have two requests "
        "at most.",
    ),
]
TimeLimit = Annotated[
    float, typer.Option(min=0.1, max=86_400, help="Seconds that the check may take.")
]
Memory = Annotated[
    float,
    typer.Option(
        min=0.1,
        max=65_536,
        help="Memory that the check may take; at most nine tenths of what is free.",
    ),
]


@ended_by_sigterm()
def export(
    model: ModelVersion = None,
    format: Format = "",
    version: Version = None,
    output: Output = None,
    every: Every = False,
    force: Force = False,
    artifact: ArtifactName = "",
    max_batch_delay: MaxBatchDelay = 1,
    time_limit_s: TimeLimit = 300.0,
    memory_gib: Memory = 16.0,
    store: StoreUrl = DEFAULT_STORE,
    keys: KeysFolder = "",
    as_json: AsJson = False,
) -> None:
    """Write a version in the format of another server or tool, once it answers as the version.

    If the format has code of its own, the golden rows run through it in a separate process. If an
    answer differs, nothing is written, and the exit code is 1.
    """
    with needing("serve"):
        from flambeau.exporting.errors import ExportError
        from flambeau.exporting.export_request import ExportRequest
        from flambeau.exporting.export_version import FORMATS, export_version
        from model_store.signatures.key_folder import KeyFolder
        from services.inference.trust import Trust

    if format not in FORMATS:
        known = ", ".join(f"{name} ({one.words})" for name, one in FORMATS.items())
        if not format:
            raise typer.BadParameter(f"the option --format is missing; give one of {known}")
        raise typer.BadParameter(f"'{format}' is none of {known}", param_hint="--format")
    options: dict[str, Any] = {
        "artifact": artifact,
        "max_batch_delay_ms": max_batch_delay,
        "trust": Trust(keys_folder=str(KeyFolder(keys).trusted_folder) if keys else ""),
        "time_limit_s": time_limit_s,
        "memory_limit_bytes": int(memory_gib * GIB),
    }
    with failing_with({**STORE_FAILURES, ExportError: 1}):
        if every:
            _check_all(model, format)
            _export_all(existing_store(store), options, output or Path(), force, as_json)
            return
        if model is None:
            raise typer.BadParameter("give MODEL/VERSION, as digits/2; or --all")
        opened = existing_store(store)
        name, number = named_version(model, version, StorePlace(opened).find)
        request = ExportRequest(store=opened, manifest=opened.manifest(name, number), **options)
        exported = export_version(request, format, output, replace=force)
    if as_json:
        print_json({**asdict(exported), "path": str(exported.path)})
        return
    typer.echo(_line(exported, request.title))


def _check_all(model: str | None, format: str) -> None:
    if model is not None:
        raise typer.BadParameter(f"'{model}' and --all: give one of them")
    if format != "triton":
        raise typer.BadParameter(f"'{format}' is no repository: --all needs --format triton")


def _export_all(
    store: "ModelStore", options: "Mapping[str, Any]", repository: Path, force: bool, as_json: bool
) -> None:
    """Exports all models and tells what became of each; the exit code is 1 if one failed."""
    from flambeau.exporting.repository_export import export_production

    documents: list[dict[str, object]] = []
    for found in export_production(store, options, repository, force=force):
        path = repository / found.model
        if found.error:
            typer.echo(f"error: {found.error}", err=True)
        elif as_json:
            pass
        elif found.exported is not None:
            typer.echo(_line(found.exported, f"{found.model} {found.version}"))
        elif found.version:
            typer.echo(f"kept {path}: {found.model} {found.version}")
        else:
            typer.echo(f"skipped {found.model}: it has no production version")
        exported = None if found.exported is None else asdict(found.exported) | {"path": str(path)}
        documents.append({**asdict(found), "exported": exported})
    if as_json:
        print_json(documents)
    if any(one["error"] for one in documents):
        raise typer.Exit(1)


def _line(exported: "Exported", title: str) -> str:
    checked = ""
    if exported.rows is not None:
        checked = (
            f"; its {exported.rows} golden rows differ by at most {exported.max_abs_difference:.2g}"
        )
    what = exported.artifact or "all files"
    size = size_text(exported.size_bytes)
    return f"wrote {exported.path} ({size}): {what} of {title}{checked}"
