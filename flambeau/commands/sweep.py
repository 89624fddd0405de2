"""`flambeau sweep`: many short trainings of a recipe; the best one is published."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.options.output import writable_folder
from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.text.failures import failing_with
from flambeau.commands.train import RecipeSource, interrupts_resumable
from model_store.host.install_advice import needing

if TYPE_CHECKING:
    from collections.abc import Callable

    from training.recipe.recipe import Recipe
    from training.sweep.parameter import Parameter


def _at_most(most: int) -> "Callable[[int], int]":
    """Checks a limit that the help does not show: its range would not fit into 80 columns."""

    def check(value: int) -> int:
        if value > most:
            raise typer.BadParameter(f"{value:,} are more than {most:,}")
        return value

    return check


Params = Annotated[
    list[str],
    typer.Option(
        "--param",
        metavar="KEY=KIND",
        help="Key to search and its distribution, as above; may be repeated.",
    ),
]
Trials = Annotated[
    int,
    typer.Option(
        min=1,
        callback=_at_most(100_000),
        metavar="N",
        help="Total number of trials, those of earlier calls included.",
    ),
]
Processes = Annotated[
    int,
    typer.Option(
        min=1, callback=_at_most(256), metavar="N", help="Number of trials that run in parallel."
    ),
]
MetricName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Metric to optimize, such as val/accuracy; stop.metric of the recipe unless given.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one value; may be repeated."),
]
Prune = Annotated[bool, typer.Option("--prune/--no-prune", help="Stop unpromising trials early.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="S",
        help="Time limit of the search in seconds; the next call resumes unfinished trials.",
    ),
]
TrialTimeout = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="S", help="Time limit of a trial in seconds; a trial that exceeds it fails."
    ),
]
TrialMemory = Annotated[
    float,
    typer.Option(
        min=0.1,
        metavar="GIB",
        help="Memory limit of a trial in GiB; a trial that exceeds it fails.",
    ),
]
Publish = Annotated[bool, typer.Option("--publish/--no-publish", help="Publish the best trial.")]
SweepsDir = Annotated[
    Path,
    typer.Option(
        metavar="DIR", callback=writable_folder, help="Folder of searches, one subfolder for each."
    ),
]
SignWith = Annotated[
    str,
    typer.Option(metavar="KEY", help="Private key that signs the version, as for flambeau train."),
]
Keys = Annotated[
    str, typer.Option(metavar="DIR", help="Folder of the keys, as for flambeau train.")
]


def sweep(
    recipe: RecipeSource,
    param: Params,
    trials: Trials = 20,
    processes: Processes = 1,
    metric: MetricName = "",
    set_: Overrides = None,
    prune: Prune = True,
    timeout: Timeout = None,
    trial_timeout: TrialTimeout = None,
    trial_memory_gib: TrialMemory = 16.0,
    publish: Publish = True,
    store: StoreUrl = DEFAULT_STORE,
    sweeps_dir: SweepsDir = Path("./var/sweeps"),
    sign_with: SignWith = "",
    keys: Keys = "",
) -> None:
    """Search for hyperparameters of a recipe, and publish the best trial.

    Each --param names a key and its distribution: 'optim.adamw.lr=log(1e-4, 1e-1)',
    'model.args.dropout=float(0, 0.5)', 'train.epochs=int(5, 20)' or
    'optim.accumulate=choice(1, 2, 4)'.

    The same command resumes an interrupted search. Exits with 0 when the best trial is published,
    or done with --no-publish; 2 when the recipe, its data or a parameter is wrong, 1 for any other
    failure.
    """
    from model_store.errors import StoreError
    from model_store.signatures.key_folder import KeyFolder
    from model_store.signatures.signing import signer_with
    from model_store.store import ModelStore
    from training.errors import DataError, RecipeError, TrainingError

    with (
        failing_with({RecipeError: 2, DataError: 2, TrainingError: 1, StoreError: 1, OSError: 1}),
        needing("sweep"),
    ):
        base, parameters = _load(recipe, set_ or [], param, metric)
        key = KeyFolder(keys).signing_key(sign_with) if publish else None
        sign = signer_with(key) if key else None
        if publish:
            ModelStore(store)  # an invalid store fails here, not after the search
        from training.sweep.search import SweepPlan
        from training.sweep.search import sweep as search

        plan = SweepPlan(
            base=base,
            parameters=parameters,
            metric=metric or base.stop.metric,
            trials=trials,
            processes=processes,
            prune=prune,
            timeout_s=timeout,
            trial_timeout_s=trial_timeout,
            trial_memory_gib=trial_memory_gib,
            weights_store=store,
        )
        with interrupts_resumable():
            search(plan, sweeps_dir, store if publish else None, sign=sign)


def _load(
    source: str, overrides: list[str], params: list[str], metric: str
) -> "tuple[Recipe, tuple[Parameter, ...]]":
    """Loads the recipe and the parameters, and checks all that needs no torch."""
    from training.errors import RecipeError
    from training.recipe.file import load_recipe
    from training.recipe.needed_packages import OPTUNA, check_packages
    from training.recipe.target_names import check_target_names
    from training.sources.named_files import check_named_files
    from training.sweep.parameter import check_parameters, parse_parameters

    loaded, parameters = load_recipe(source, overrides), parse_parameters(params)
    check_target_names(loaded)
    told = loaded.unknown_metric("--metric", metric)
    if metric.startswith("val/") and told:
        raise RecipeError(told)
    check_parameters(loaded, parameters, imports=False)
    check_named_files(loaded)
    check_packages(loaded, OPTUNA)
    return loaded, parameters
