"""`flambeau models`: the contents and integrity of a model store, and its live versions."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.keys import KeysFolder
from flambeau.commands.options.model import (
    ModelName,
    VersionOrDefault,
    model_and_version,
)
from flambeau.commands.options.registry import ServerUrl
from flambeau.commands.options.store import (
    DEFAULT_STORE,
    STORE_FAILURES,
    StoreUrl,
    existing_store,
)
from flambeau.commands.options.token import TokenFile
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.remote.contents import list_at, show_at
from flambeau.commands.remote.move_requests import approve, refuse, requests
from flambeau.commands.remote.uploads import uploads
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.model import (
    METRIC,
    PRODUCTION,
    ModelSummary,
    list_lines,
    own_steps,
    show_lines,
    without_steps,
)
from flambeau.commands.text.tables import columns
from flambeau.commands.versions.aliases import promote, rollback, unalias
from flambeau.commands.versions.annotations import delete, describe, tag
from flambeau.commands.versions.history import history
from flambeau.commands.versions.prune import prune
from model_store.errors import SignatureMismatchError, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from model_store.listing import ModelListing
    from model_store.manifest import FileEntry, Manifest
    from model_store.store import ModelStore

models_app = Verbs(no_args_is_help=True, help="List, inspect, verify and promote models.")

WithSteps = Annotated[
    bool, typer.Option("--all", help="List the models of pipelines' own steps, too.")
]


@models_app.command("list")
@failing_with(STORE_FAILURES)
def list_models(
    with_steps: WithSteps = False,
    store: StoreUrl = DEFAULT_STORE,
    server: ServerUrl = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the models, their production versions and the fastest artifacts.

    Models that are code of a pipeline, PIPELINE.STEP, are listed with --all.
    An unreadable model is listed too, with the reason, and makes the exit code 1.
    """
    if server:
        list_at(server, token_file, as_json)
        return
    opened = existing_store(store)
    summaries = [
        _summary(opened, model, listing)
        for model, listing in opened.listing().items()
        if listing.versions or listing.unreadable
    ]
    if not with_steps:
        summaries = without_steps(summaries)
    if as_json:
        print_json([asdict(summary) for summary in summaries])
    elif summaries:
        _print_lines(list_lines(summaries))
    if not summaries:
        nothing = opened.foreign_layout() or f"the store {opened.url} holds no model yet"
        typer.echo(nothing, err=as_json)
    unreadable = [summary.error for summary in summaries if summary.error]
    for error in unreadable:
        typer.echo(f"error: {error}", err=True)
    if unreadable:
        raise typer.Exit(1)


@models_app.command()
@failing_with(STORE_FAILURES)
def show(
    model: ModelName,
    version: VersionOrDefault = None,
    store: StoreUrl = DEFAULT_STORE,
    server: ServerUrl = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a version: signature, artifacts with their metrics, lineage, files."""
    if server:
        show_at(server, token_file, model, version, as_json)
        return
    opened, manifest = open_version(store, model, version)
    pointers = opened.pointers(manifest.model)
    versions = pointers.aliases if pointers else {}
    aliases = sorted(alias for alias, v in versions.items() if v == manifest.version)
    if as_json:
        print_json({**manifest.model_dump(mode="json"), "aliases": aliases})
    else:
        _print_lines([*show_lines(manifest, aliases), *_certificate_lines(opened, manifest)])


@models_app.command()
@failing_with(STORE_FAILURES)
def verify(
    model: ModelName,
    version: VersionOrDefault = None,
    store: StoreUrl = DEFAULT_STORE,
    keys: KeysFolder = "",
    as_json: AsJson = False,
) -> None:
    """Check the size and sha256 of every file of a version, and its signature."""
    from model_store.manifest import SIGNATURE

    opened, manifest = open_version(store, model, version)
    artifacts = {artifact.file.file: f"artifact {artifact.name}" for artifact in manifest.artifacts}
    failures = {e.file: _failure(opened, manifest, e) for e in manifest.all_files()}
    title = f"{manifest.model} {manifest.version}"
    rows = [
        [title, artifacts.get(file, "file"), file, failure or "ok"]
        for file, failure in failures.items()
    ]
    signed, failures[SIGNATURE] = _signed(opened, manifest, keys)
    if as_json:
        _print_checks(manifest, failures, signed)
    else:
        _print_lines(columns([*rows, [title, "signature", SIGNATURE, signed]]))
    if bad := [file for file, failure in failures.items() if failure]:
        typer.echo(
            f"error: {len(bad)} of {len(failures)} files of {title} differ from what was published "
            f"and will be refused; {_advice(opened, manifest)}",
            err=True,
        )
        raise typer.Exit(1)


models_app.command()(promote)
models_app.command()(rollback)
models_app.command()(history)
models_app.command()(unalias)
models_app.command()(tag)
models_app.command()(describe)
models_app.command()(delete)
models_app.command()(uploads)
models_app.command()(requests)
models_app.command()(approve)
models_app.command()(refuse)
models_app.command()(prune)


def open_version(url: str, model: str, version: int | None) -> tuple["ModelStore", "Manifest"]:
    """Opens the store, and returns it with the version: the given, production or newest one."""
    from model_store.version_address import find_version

    name, number = model_and_version(model, version)
    store = existing_store(url)
    return store, find_version(store, name) if number is None else store.manifest(name, number)


def _summary(store: "ModelStore", model: str, listing: "ModelListing") -> ModelSummary:
    """Returns the facts of one model; an unreadable model must not hide the others."""
    if listing.unreadable:
        return ModelSummary(model=model, versions=(), error=listing.unreadable)
    try:
        pointers = (
            store.pointers_at(model, listing.generations[-1]) if listing.generations else None
        )
        aliases = dict(pointers.aliases) if pointers else {}
        manifest = store.manifest(model, aliases.get(PRODUCTION, listing.versions[-1]))
    except Exception as error:  # the files may have any content
        reason = str(error) if isinstance(error, StoreError) else f"model {model}: {error!r}"
        return ModelSummary(model=model, versions=listing.versions, error=reason)
    if not manifest.artifacts:
        return ModelSummary(
            model=model,
            versions=listing.versions,
            aliases=aliases,
            version_shown=manifest.version,
            semver_shown=manifest.semver,
            own_steps=own_steps(manifest),
        )
    best = manifest.artifacts_by_speed()[0]
    proof = best.verification
    metric = METRIC if proof.judged_by is None else proof.judged_by.name
    batch_size, latency_ms = min(best.latency_ms.items(), default=(None, None))
    return ModelSummary(
        model=model,
        versions=listing.versions,
        aliases=aliases,
        version_shown=manifest.version,
        semver_shown=manifest.semver,
        best_artifact=best.name,
        batch_size=batch_size,
        latency_ms=latency_ms,
        accuracy=proof.metrics.get(METRIC),
        metric=metric if metric in proof.metrics else None,
        metric_value=proof.metrics.get(metric),
    )


def _certificate_lines(store: "ModelStore", manifest: "Manifest") -> list[str]:
    """Lists the certificates of a version; an unreadable one must not hide the version."""
    from flambeau.commands.text.certificate import list_lines
    from model_store.certificates.certificates import certificates

    try:
        found = certificates(store, manifest)
    except StoreError as error:
        return ["", f"certificates: {error}"]
    return ["", "certificates", *(f"  {line}" for line in list_lines(found))] if found else []


def _failure(store: "ModelStore", manifest: "Manifest", entry: "FileEntry") -> str | None:
    """Returns the error of one file, or None."""
    try:
        store.read_file(manifest, entry)
    except StoreError as error:
        return str(error)
    return None


def _signed(store: "ModelStore", manifest: "Manifest", keys: str) -> tuple[str, str | None]:
    """Describes the signer of a version, if known here, and returns the error, or None."""
    from model_store.signatures.key_folder import KeyFolder, trusted_keys

    if store.signature(manifest.model, manifest.version) is None:
        return "none", None
    try:
        key = store.signer(manifest, trusted_keys(KeyFolder(keys).trusted_folder))
    except SignatureMismatchError as error:
        return str(error), str(error)
    except StoreError as error:  # no trusted key here, which may be intended
        return str(error), None
    return f"by {key.name}", None


def _advice(store: "ModelStore", manifest: "Manifest") -> str:
    """Describes the live version, and the remedy."""
    pointers = store.pointers(manifest.model)
    live = pointers.aliases.get(PRODUCTION) if pointers else None
    if live is None:
        return "no version is in production"
    if live != manifest.version:
        return f"production stays at {live}"
    return f"it is in production: flambeau models rollback {manifest.model}"


def _print_checks(manifest: "Manifest", failures: "Mapping[str, str | None]", signed: str) -> None:
    files = [{"file": file, "error": failure} for file, failure in failures.items()]
    print_json(
        {
            "model": manifest.model,
            "version": manifest.version,
            "ok": not any(failures.values()),
            "files": files,
            "signature": signed,
        }
    )


def _print_lines(lines: list[str]) -> None:
    typer.echo("\n".join(lines))
