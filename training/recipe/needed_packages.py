"""Checks that the packages a recipe needs are installed, including those of the extra `train`.

In: a recipe. Out: nothing, or an error that names the packages and the one command that installs
them. The check runs before torch is imported and before data is read, because both are slow.
"""

import importlib.util
from collections.abc import Iterator

from model_store.host.install_advice import install_command
from training.errors import RecipeError
from training.recipe.kinds.export_kinds import EXPORT_KINDS
from training.recipe.recipe import Recipe

OF_SOURCES = {
    "csv": ("pyarrow", "data"),
    "parquet": ("pyarrow", "data"),
    "huggingface": ("pyarrow", "data"),
    "image_folder": ("PIL", "images"),
}
"""Module and extra that each data source needs."""
OF_TRACKERS = {
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}
"""Modules of each tracker; its extra has the tracker's name."""
Need = tuple[str, str, str]
"""Description of the feature that needs the package; module; extra that installs it."""
OPTUNA: Need = ("a search", "optuna", "sweep")
OF_TRAINING = ("torch", "onnx", "onnxscript", "sklearn", "torchao")
"""Modules of the extra `train`, which any training may import."""


def check_packages(recipe: Recipe, *more: Need) -> None:
    """Checks that every package the recipe and any training need is installed.

    Args:
        recipe: recipe of the run.
        more: additional requirements.

    Raises:
        RecipeError: packages are missing; the message names the keys that need them.
    """
    missing: dict[str, Need] = {}
    for need in (*_needed(recipe), *more):
        _, module, extra = need
        if extra not in missing and importlib.util.find_spec(module) is None:
            missing[extra] = need
    if missing:
        told = " and ".join(f"{key} needs {module}" for key, module, _ in missing.values())
        which = "which is" if len(missing) == 1 else "which are"
        raise RecipeError(f"{told}, {which} not installed: {install_command(','.join(missing))}")


def _needed(recipe: Recipe) -> Iterator[Need]:
    """Yields each requirement with the recipe key that causes it."""
    if recipe.data.choice in OF_SOURCES:
        yield f"data.{recipe.data.choice}", *OF_SOURCES[recipe.data.choice]
    for tracker in recipe.track:
        for module in OF_TRACKERS.get(tracker, ()):
            yield f"track: {tracker}", module, tracker
    for entry in recipe.listed_exports():
        kind = EXPORT_KINDS[entry.kind]
        for package in kind.packages(entry.precision):
            precision = ", precision int8" if package is kind.quantizer else ""
            yield f"export: {entry.kind}{precision}", *package
    for module in OF_TRAINING:
        yield "a training", module, "train"
