"""`flambeau models prune`: deletes versions that nothing uses, by number and age.

In: a store, and servers that may hold its versions. Out: what is kept and why, what is deleted.
Rule: without --yes, nothing changes.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.model import models_that_begin
from flambeau.commands.options.store import (
    DEFAULT_STORE,
    STORE_FAILURES,
    StoreUrl,
    existing_store,
)
from flambeau.commands.options.token import TokenFile
from flambeau.commands.remote.connecting import registry_at
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.pruning import plan_document, plan_lines
from flambeau.commands.text.tables import size_text

if TYPE_CHECKING:
    from model_store.retention.leftovers import Leftover
    from model_store.retention.pruning import Holders, Pruned, PrunePlan, Pruner

MOST_DAYS = 36_500
"""A hundred years."""

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        help="Names of models; unless given, all.",
        autocompletion=models_that_begin,
    ),
]
KeepNewest = Annotated[
    int, typer.Option(metavar="N", min=1, help="Keep the newest N versions of each model.")
]
KeepDays = Annotated[
    float,
    typer.Option(metavar="D", min=0, max=MOST_DAYS, help="Keep versions younger than D days."),
]
Servers = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Keep what the server http(s)://HOST:PORT holds; repeat it for each server. What "
        "other servers hold is not known.",
    ),
]
NoServer = Annotated[
    bool, typer.Option("--no-server", help="Delete without asking a server: none serves the store.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Delete; otherwise only show what would be.")]


@failing_with(STORE_FAILURES)
def prune(
    models: Models = None,
    keep_newest: KeepNewest = 10,
    keep_days: KeepDays = 30,
    server: Servers = None,
    no_server: NoServer = False,
    yes: Yes = False,
    store: StoreUrl = DEFAULT_STORE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete versions that nothing uses, and files of killed publishers; needs --yes.

    Without --yes, it lists them and deletes nothing.

    Kept are versions that an alias, a pipeline or a server uses, the newest, and the young.
    """
    if server and no_server:
        raise typer.BadParameter("give --server, or --no-server, not both")
    if yes and not server and not no_server:
        raise typer.BadParameter(
            "which servers serve this store? Name each by --server URL, as what others hold is "
            "not known; or give --no-server if none does",
            param_hint="--yes",
        )
    from model_store.retention.pruning import Pruner
    from model_store.retention.rules import RetentionRule

    rule = RetentionRule(keep_newest=keep_newest, keep_days=keep_days)
    with _holders(server or [], token_file) as holders:
        pruner = Pruner(existing_store(store), rule, models or None, holders)
        plan = pruner.plan()
        if as_json:
            _run_as_json(pruner, plan, yes)
        elif yes:
            _run(pruner, plan)
        else:
            typer.echo("\n".join(plan_lines(plan)))
    if not yes and not server and not no_server:
        typer.echo("note: no server was asked what it holds (--server URL)", err=True)


@contextlib.contextmanager
def _holders(urls: list[str], token_file: Path | None) -> Iterator["Holders"]:
    """Opens a connection to each server for the block."""
    from flambeau.registry.held_versions import held_versions

    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(registry_at(url, token_file)) for url in dict.fromkeys(urls)]
        yield lambda: held_versions(opened)


def _run(pruner: "Pruner", plan: "PrunePlan") -> None:
    """Deletes, and prints each version and leftover as it goes."""
    refused = 0

    def tell(one: "Pruned") -> None:
        nonlocal refused
        model, version = one.key
        if one.refusal:
            refused += 1
            typer.echo(f"error: {model} {version} was kept: {one.refusal}", err=True)
        else:
            typer.echo(f"deleted {model} {version} ({size_text(plan.sizes.get(one.key, 0))})")

    pruner.delete(tell)
    pruner.remove_leftovers(lambda one: typer.echo(f"removed {one.folder}: {one.reason}"))
    if refused:
        raise typer.Exit(1)


def _run_as_json(pruner: "Pruner", plan: "PrunePlan", yes: bool) -> None:
    document = plan_document(plan)
    refusals: list[dict[str, object]] = []
    if yes:
        deleted: list[Pruned] = []
        removed: list[Leftover] = []
        pruner.delete(deleted.append)
        pruner.remove_leftovers(removed.append)
        document["deleted"] = [
            {"model": one.key[0], "version": one.key[1]} for one in deleted if not one.refusal
        ]
        document["removed"] = [one.folder for one in removed]
        refusals += (
            {"model": one.key[0], "version": one.key[1], "error": one.refusal}
            for one in deleted
            if one.refusal
        )
        document["refused"] = refusals
    print_json(document)
    if refusals:
        raise typer.Exit(1)
