"""`flambeau push` and `flambeau pull`: copy a version between stores, and with a registry."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.model import Version, named_version, versions_that_begin
from flambeau.commands.options.registry import Why
from flambeau.commands.options.store import (
    DEFAULT_STORE,
    STORE_FAILURES,
    StoreUrl,
    existing_store,
)
from flambeau.commands.options.token import TokenFile
from flambeau.commands.places.store_place import StorePlace
from flambeau.commands.remote.transfer import pull_from_registry, push_to_registry
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import size_text
from flambeau.registry.url import is_registry, lacks_scheme

if TYPE_CHECKING:
    from model_store.store import Progress

ModelVersion = Annotated[
    str,
    typer.Argument(
        metavar="MODEL/VERSION",
        help="Version to copy, such as digits/3 or digits@production.",
        autocompletion=versions_that_begin,
    ),
]


def push(
    model: ModelVersion,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="The store to copy to, or http(s)://HOST:PORT of a server."
        ),
    ],
    version: Version = None,
    store: StoreUrl = DEFAULT_STORE,
    why: Why = "",
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy a version to another store or a server, under the same number; run it again to resume.

    To a server, MODEL/VERSION may also be the path of a folder with the files of a version. Models
    of a pipeline that are missing there are copied, too.
    """
    if is_registry(to):
        push_to_registry(model, version, store, to, why, token_file, as_json)
        return
    _refuse_server("--to", to, {"--token-file": token_file, "--why": why})
    _copy(model, version, source_url=store, target_url=to, as_json=as_json)


def pull(
    model: ModelVersion,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            help="The store to copy from, or http(s)://HOST:PORT of a server.",
        ),
    ],
    version: Version = None,
    store: StoreUrl = DEFAULT_STORE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy a version from another store or a server, under the same number.

    Run it again to resume. From a server, MODEL alone is its version in production, or else the
    newest. Models of a pipeline that are missing here are copied, too.
    """
    if is_registry(from_):
        pull_from_registry(model, version, store, from_, token_file, as_json)
        return
    _refuse_server("--from", from_, {"--token-file": token_file})
    _copy(model, version, source_url=from_, target_url=store, as_json=as_json)


def _refuse_server(option: str, url: str, of_servers: Mapping[str, object]) -> None:
    """Refuses a store that was meant as a server.

    Args:
        option: option that names it.
        url: its URL.
        of_servers: values of the options that only a server has a use for.

    Raises:
        BadParameter: the URL is HOST:PORT, or one of the options was given.
    """
    if lacks_scheme(url):
        raise typer.BadParameter(
            f"'{url}' names no store; for a server, write http://{url} or https://{url}",
            param_hint=option,
        )
    if given := [name for name, value in of_servers.items() if value]:
        raise typer.BadParameter(
            f"{' and '.join(given)} are for servers, and '{url}' is a store; write "
            f"{option} http://HOST:PORT, or leave them out",
            param_hint=option,
        )


@failing_with(STORE_FAILURES)
def _copy(named: str, number: int | None, source_url: str, target_url: str, as_json: bool) -> None:
    from model_store.pipelines.parts import missing_parts
    from model_store.semver.breaking import broken_callers_of_production
    from model_store.store import ModelStore
    from model_store.transfer import copy_version

    source = existing_store(source_url)
    model, version = named_version(named, number, StorePlace(source).find)
    manifest, target = source.manifest(model, version), ModelStore(target_url)
    versions = [*missing_parts(source, target, manifest), manifest]
    total_bytes = sum(entry.size_bytes for one in versions for entry in one.all_files())
    with _progress(f"{model} {version}", total_bytes) as progress:
        report = copy_version(source, target, model, version, progress)
    if breaks := broken_callers_of_production(target, manifest):
        typer.echo(f"note: {breaks}", err=True)
    if as_json:
        where = {"model": model, "version": version, "store": target.url}
        print_json({**where, **asdict(report)})
        return
    what = f"{model} {version} is"
    if report.parts:
        what = f"{model} {version} and its models ({', '.join(report.parts)}) are"
    typer.echo(
        f"{what} in {target.url}: {report.files_copied} files copied "
        f"({size_text(report.bytes_copied)}), {report.files_skipped} there already"
    )


@contextlib.contextmanager
def _progress(title: str, total_bytes: int) -> Iterator["Progress"]:
    """Shows a bar on a terminal, otherwise a line per finished file; both on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda file, size_bytes: typer.echo(
            f"{title}: {file} ({size_text(size_bytes)}) done", err=True
        )
        return
    text = TextColumn("{task.description}")
    with Bar(text, BarColumn(), DownloadColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda file, size_bytes: bar.update(
            task, advance=size_bytes, description=f"{title}: {file}"
        )
