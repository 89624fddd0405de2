"""`flambeau push` and `flambeau pull` between a store, or a folder, and a registry."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from flambeau.commands.options.as_json import print_json
from flambeau.commands.options.model import model_and_version, named_version
from flambeau.commands.options.store import STORE_FAILURES, existing_store
from flambeau.commands.places.store_place import StorePlace
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import size_text

if TYPE_CHECKING:
    from flambeau.registry.connection import RegistryConnection
    from flambeau.registry.pull import Pull
    from flambeau.registry.push import PushReport, Sent
    from flambeau.registry.sources import VersionSource
    from model_store.store import ModelStore

PULLS = "~/.cache/flambeau/pulls"
"""Folder of unfinished pulls into a bucket."""


@failing_with(STORE_FAILURES)
def push_to_registry(
    named: str,
    number: int | None,
    store: str,
    url: str,
    why: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Pushes a version, and the parts of a pipeline before it, and prints the outcome."""
    sources = _sources(named, number, store)
    with registry_at(url, token_file) as registry:
        reports = [push_one(registry, source, why, is_part=n > 0) for n, source in sources]
    _tell(reports[-1], registry.url, "sent", as_json)


def push_one(
    registry: "RegistryConnection", source: "VersionSource", why: str, *, is_part: bool
) -> "PushReport | None":
    """Pushes one version; None for a part whose number another version has there.

    The registry checks that it has parts that fit when the pipeline arrives.
    """
    from flambeau.registry.errors import RegistryConflictError
    from flambeau.registry.push import push_version

    manifest = source.manifest
    total = sum(entry.size_bytes for entry in manifest.all_files()) + len(source.sealed)
    with _bar(f"{manifest.model} {manifest.version}", total) as sent:
        try:
            return push_version(registry, source, sent, why)
        except RegistryConflictError:
            if not is_part:
                raise
            return None


def _sources(named: str, number: int | None, store: str) -> list[tuple[int, "VersionSource"]]:
    """Returns the versions to push: the parts of a pipeline, numbered down to 0 for itself."""
    from flambeau.registry.sources import StoredVersion, VersionFolder
    from model_store.manifest import MANIFEST
    from model_store.pipelines.parts import part_versions

    folder = Path(named).expanduser()
    if number is None and (folder / MANIFEST).is_file():
        return [(0, VersionFolder(folder))]
    opened = existing_store(store)
    model, version = named_version(named, number, StorePlace(opened).find)
    own = StoredVersion(opened, model, version)
    pipeline = own.manifest.pipeline
    parts = [] if pipeline is None else [*part_versions(opened, pipeline.graph).values()]
    found = [StoredVersion(opened, part.model, part.version) for part in parts]
    return [*((len(found) - n, one) for n, one in enumerate(found)), (0, own)]


@failing_with(STORE_FAILURES)
def pull_from_registry(
    named: str, number: int | None, store: str, url: str, token_file: Path | None, as_json: bool
) -> None:
    """Pulls a version, and the parts of a pipeline before it, and prints the outcome."""
    from flambeau.registry.pull import Pull, wanted_version
    from model_store.manifest import check_name
    from model_store.store import ModelStore

    model, version = model_and_version(named, number)
    model, _, wanted = model.partition("@")
    check_name(model)
    with registry_at(url, token_file) as registry:
        found = version or wanted_version(registry, model, wanted)
        pull, target = Pull(registry, model, found), ModelStore(store)
        for part in _missing_parts(registry, pull, target):
            _pull(part, target)
        report = _pull(pull, target)
    _tell(report, target.url, "received", as_json)


def _missing_parts(
    registry: "RegistryConnection", pull: "Pull", target: "ModelStore"
) -> Iterator["Pull"]:
    """Yields the parts of a pipeline that the target lacks."""
    from flambeau.registry.pull import Pull, wanted_version
    from model_store.errors import ModelNotFoundError, VersionNotFoundError
    from model_store.pipelines.graph import parse_part
    from model_store.pipelines.parts import newest

    pipeline = pull.manifest.pipeline
    for text in () if pipeline is None else sorted(set(pipeline.graph.models())):
        part = parse_part(text)
        try:
            newest(target, part)
        except (ModelNotFoundError, VersionNotFoundError):
            wanted = text.partition("@")[2]
            yield Pull(registry, part.model, wanted_version(registry, part.model, wanted))


def _pull(pull: "Pull", target: "ModelStore") -> "PushReport":
    from model_store.uploads.abandoned import UPLOADS

    manifest = pull.manifest
    folder = Path(target.url, UPLOADS) if target.is_local else Path(PULLS).expanduser()
    with _bar(f"{manifest.model} {manifest.version}", pull.size_bytes) as sent:
        return pull.into(target, folder, sent)


def _tell(report: "PushReport | None", place: str, verb: str, as_json: bool) -> None:
    assert report is not None, "a conflict of the version itself is an error"
    if report.breaks:
        typer.echo(f"note: {report.breaks}", err=True)
    if as_json:
        print_json({**asdict(report), "store": place})
        return
    typer.echo(
        f"{report.model} {report.version} is in {place}: {report.files_copied} files {verb} "
        f"({size_text(report.bytes_copied)}), {report.files_skipped} there already"
    )


@contextlib.contextmanager
def _bar(title: str, total_bytes: int) -> Iterator["Sent"]:
    """Shows a bar with rate and time left on a terminal, otherwise a line per finished file."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda file, _, done: typer.echo(f"{title}: {file} done", err=True) if done else None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda file, count, _: bar.update(task, advance=count, description=f"{title}: {file}")
