"""The packages that a recipe needs, those of the extra `train` among them.

In: a recipe. Out: nothing, or an error that names the packages and the one command that installs
them. It is asked before torch is imported and before data is read, which take a while.
"""

import importlib.util
from collections.abc import Iterator

from model_store.host.install_advice import install_command
from training.errors import RecipeError
from training.recipe.recipe import Recipe

OF_SOURCES = {
    "csv": ("pyarrow", "data"),
    "parquet": ("pyarrow", "data"),
    "huggingface": ("pyarrow", "data"),
    "image_folder": ("PIL", "images"),
}
"""Module and extra of a source of data."""
OF_TRACKERS = {
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}
"""Modules of a tracker's extra, which is called as it is."""
Need = tuple[str, str, str]
"""Who needs it, in words; the module; the extra that brings it."""
OPTUNA: Need = ("a search", "optuna", "sweep")
OF_TRAINING = ("torch", "onnx", "onnxscript", "sklearn", "torchao")
"""Modules of the extra `train`, which every training may import."""


def check_packages(recipe: Recipe, *more: Need) -> None:
    """Everything the recipe names is installed, and what every training needs.

    Args:
        recipe: the run.
        more: what else is needed.

    Raises:
        RecipeError: packages are not, with the keys that need them.
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
    """Each, by the key that names it."""
    if recipe.data.choice in OF_SOURCES:
        yield f"data.{recipe.data.choice}", *OF_SOURCES[recipe.data.choice]
    for tracker in recipe.track:
        for module in OF_TRACKERS.get(tracker, ()):
            yield f"track: {tracker}", module, tracker
    for entry in recipe.listed_exports():
        if entry.kind == "openvino":
            yield "export: openvino", "openvino", "openvino-train"
            if entry.precision == "int8":
                yield "export: openvino, precision int8", "nncf", "openvino-train"
    for module in OF_TRAINING:
        yield "a training", module, "train"
