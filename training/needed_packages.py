"""The packages that a recipe needs beyond those of the extra `train`.

In: a recipe. Out: nothing, or an error that names the package and the command that installs it.
It is asked before torch is imported and before data is read, which take a while.
"""

import importlib.util
from collections.abc import Iterator

from model_store.install_advice import install_command
from training.errors import RecipeError
from training.recipe import Recipe

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


def check_packages(recipe: Recipe) -> None:
    """Everything the recipe names is installed.

    Raises:
        RecipeError: a package is not, by the first key that needs it.
    """
    for key, module, extra in _needed(recipe):
        if importlib.util.find_spec(module) is None:
            raise RecipeError(
                f"{key} needs {module}, which is not installed: {install_command(extra)}"
            )


def _needed(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Key, module and extra of each."""
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
