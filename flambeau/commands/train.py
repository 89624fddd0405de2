"""`flambeau train`: trains a recipe, and publishes the result as a version."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.options.keys import KeysFolder
from flambeau.commands.options.output import writable_folder
from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.remote.trained_version import pushed_where_asked
from flambeau.commands.text.failures import failing_with
from model_store.host.install_advice import needing

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C stopped, by shell convention."""
RecipeSource = Annotated[
    str,
    typer.Argument(help="A YAML file, or a function: path/file.py:name or package.module:name."),
]


def train(
    recipe: RecipeSource,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override one value, such as optim.adamw.lr=1e-3 or export.0.precision=int8; "
            "may be repeated.",
        ),
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint of the same recipe.")
    ] = False,
    runs_dir: Annotated[
        str,
        typer.Option(
            callback=writable_folder, help="Folder of checkpoints and metrics, one per run."
        ),
    ] = "./var/runs",
    sign_with: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Name of the private key that signs the version, or its PEM file; unless given, "
            "the only key in the key folder, if there is one.",
        ),
    ] = "",
    keys: KeysFolder = "",
) -> None:
    """Train a recipe, export and verify its artifacts, and publish those within tolerance.

    Exits with 0 when a version is published, 2 when the recipe or its data are wrong, 75 when
    SIGTERM has stopped several processes after a checkpoint, 1 for any other failure.
    """
    from model_store.errors import StoreError
    from model_store.signatures.key_folder import KeyFolder
    from training.errors import DataError, RecipeError, StoppedError, TrainingError
    from training.job import STOPPED

    # The disk is the user's, so its errors are reported without a traceback.
    codes: dict[type[Exception], int] = {TrainingError: 1, StoreError: 1, OSError: 1}
    codes |= {RecipeError: 2, DataError: 2, StoppedError: STOPPED}
    with failing_with(codes), needing("train"):
        loaded = _load(recipe, set_ or [], store)
        if resume and loaded.weights is not None:
            raise RecipeError("train is none, so there is no training to resume; drop --resume")
        key = KeyFolder(keys).signing_key(sign_with)
        interrupts = interrupts_resumable("" if resume else " with --resume")
        with interrupts, pushed_where_asked(loaded) as into:
            _run(loaded, store, Path(runs_dir), resume, key, into)


def _run(
    recipe: "Recipe", store: str, runs_dir: Path, resume: bool, key: Path | None, into: str
) -> None:
    """Trains in this process, or in as many as the recipe asks for."""
    from flambeau.protocol.heavy_imports import heavy_imports
    from model_store.signatures.signing import signer_with
    from training.recipe.user_code import own_code_named

    sign = signer_with(key) if key else None  # before training: an invalid key fails here
    if recipe.train.processes > 1:
        from training.distributed.launcher import train_together

        train_together(recipe, store, runs_dir, resume=resume, private_key=key, into=into)
        return
    may_fork = "torch" not in sys.modules  # or the recipe's code may have used its threads
    with heavy_imports():
        from training.pipeline import run
        from training.process.isolated_run import fork_process_server
    if may_fork:
        fork_process_server()

    with own_code_named():
        run(recipe, store, runs_dir, resume=resume, sign=sign, into=into)


@contextmanager
def interrupts_resumable(option: str = "") -> Iterator[None]:
    """Reports on Ctrl-C how to resume, and exits; `option` is what to add to the command."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; the same command{option} resumes from here", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _load(source: str, overrides: list[str], store: str) -> "Recipe":
    """Loads the recipe, and checks its references first, since importing torch is slow."""
    from model_store.store import ModelStore
    from training.network.stored_version import stored_version
    from training.recipe.file import load_recipe
    from training.recipe.needed_packages import check_packages
    from training.recipe.target_names import check_target_names
    from training.sources.named_files import check_named_files

    loaded = load_recipe(source, overrides)
    check_target_names(loaded)
    check_named_files(loaded)
    if loaded.model.from_ is not None:
        stored_version(ModelStore(store), loaded.model.from_)
    check_packages(loaded)
    return loaded
