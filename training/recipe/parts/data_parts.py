"""The part of a recipe that says which rows a run learns from. Pure.

One key names the source, as in `data: {csv: {path: houses.csv, label: price}}`. What each reads is
in `training.sources`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from model_store.signature import TensorName
from training.recipe.parts.loading_parts import LoadingFields
from training.recipe.parts.one_of import OneOf
from training.recipe.parts.recipe_part import RecipePart

MAX_SIDE = 16_384
"""Pixels of an image's edge."""
Dtype = Literal["fp32", "fp64", "int64", "int32", "uint8", "bool", "text"]
Share = Annotated[float, Field(gt=0, lt=1)]


class BySplit(RecipePart):
    """One text for each split."""

    train: str = Field(min_length=1)
    """For the rows it learns from."""
    validation: str | None = Field(default=None, min_length=1)
    """For the rows that choose the best epoch; null cuts `validation_share` off those of `train`.
    Give it where somebody has already put them apart."""
    test: str | None = Field(default=None, min_length=1)
    """For the rows it is judged by; null cuts `test_share` off those of `train`. Give it where
    somebody has already put them apart."""


Text = Annotated[str, Field(min_length=1)]
PathOrPaths = Text | BySplit
"""A path from the working directory, which is the bundle's folder in the training service."""
NameOrNames = Text | BySplit
"""The name of an array, or one for each split."""


class Shares(RecipePart):
    """How rows that lie together are put apart; every split keeps the share of each class."""

    validation_share: Share = 0.15
    """Share of what is not test, to choose the best epoch by. Raise it when the metric jumps from
    epoch to epoch."""
    test_share: Share = 0.2
    """Share of all rows, to judge by. Raise it for small data, whose figures are luck else."""
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    """Decides which row goes where; null for the seed of the run. Give it to keep the same splits
    while the seed of the run changes."""


def _as_columns(value: Any) -> Any:
    return {"columns": value} if isinstance(value, str | list | tuple) else value


class Columns(RecipePart):
    """Columns that make one tensor."""

    columns: Text | tuple[Text, ...] = Field(min_length=1)
    """A list makes [rows, columns]; a single name [rows], or [rows, T] where the cells of a Parquet
    column are lists of T numbers."""
    dtype: Dtype = "fp32"
    """Type of the tensor. Take `int64` for what an embedding reads, `text` for a step `python` of
    `preprocess`."""

    def names(self) -> tuple[str, ...]:
        """The columns, whether one or several."""
        return (self.columns,) if isinstance(self.columns, str) else self.columns


ColumnsOrNames = Annotated[
    Columns,
    BeforeValidator(_as_columns, json_schema_input_type=Text | tuple[Text, ...] | Columns),
]


class Table(Shares):
    """Rows with columns of names."""

    path: PathOrPaths
    """The file, or one for each split as in `{train: a, test: b}`."""
    label: Text | tuple[Text, ...] = Field(min_length=1)
    """Column of the labels; a list for several labels a row. Text names a class; give `labels` of
    the recipe for an order of the classes other than the alphabet's."""
    inputs: dict[TensorName, ColumnsOrNames] = Field(default={})
    """The model's inputs in order, each with its columns, as in `{features: [age, income]}`; empty
    makes one input `features` of all columns that are nothing else. Give it to leave some out."""
    split_column: Text | None = None
    """Column that says `train`, `validation` or `test` of each row; null splits by shares. Give it
    where somebody has already put the rows apart."""
    missing: float | None = None
    """What stands for an input that a row does not have; null refuses such rows. Give a number that
    the model can tell from real ones."""

    @model_validator(mode="after")
    def _apart_in_one_way(self) -> "Table":
        if self.split_column is not None and not isinstance(self.path, str):
            raise ValueError("split_column and a path for each split exclude each other; keep one")
        return self

    @model_validator(mode="after")
    def _answers_apart(self) -> "Table":
        for tensor, group in self.inputs.items():
            for name in group.names():
                if name in self.special():
                    raise ValueError(
                        f"input '{tensor}' has the column '{name}', which is the label or says the "
                        "split; leave it out"
                    )
        return self

    def labels(self) -> tuple[str, ...]:
        """The columns of the labels, whether one or several."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def special(self) -> tuple[str, ...]:
        """The columns that are no inputs."""
        return self.labels() if self.split_column is None else (*self.labels(), self.split_column)


class Csv(Table):
    """A file of comma-separated values in UTF-8, whose first line names the columns."""

    delimiter: str = Field(default=",", pattern=r"^[^\r\n\"]$")
    """What stands between cells. Give `;` or a tab for files that have it."""


class Parquet(Table):
    """A Parquet file."""


class ImageFolder(Shares):
    """Images in a folder for each class."""

    path: PathOrPaths
    """The folder of the classes' folders, or one for each split as in `{train: a, test: b}`."""
    size: (
        tuple[Annotated[int, Field(ge=1, le=MAX_SIDE)], Annotated[int, Field(ge=1, le=MAX_SIDE)]]
        | None
    ) = None
    """Height and width that all images are brought to; null wants them of one size. Give it for
    photographs."""
    mode: Literal["RGB", "L"] = "RGB"
    """Three channels of colour, or one of grey (`L`)."""
    dtype: Literal["fp32", "uint8"] = "fp32"
    """FP32 from 0 to 1, or the bytes from 0 to 255. Take `uint8`, with `scale` in `preprocess`, for
    a quarter of the memory and callers who send bytes."""
    input: TensorName = "image"
    """The model's input: [rows, channels, height, width]."""


class Arrays(Shares):
    """Arrays by name, of which one holds the labels."""

    path: PathOrPaths
    """The file, or one for each split as in `{train: a, test: b}`."""
    inputs: dict[TensorName, NameOrNames] = Field(min_length=1)
    """The model's inputs in order, each with the name of its array [rows, ...], as in `{image: x}`;
    one file may hold those of all splits, as in `{image: {train: x_train, test: x_test}}`."""
    label: NameOrNames
    """Name of the array of labels, [rows] or [rows, T]."""


class Numpy(Arrays):
    """An `.npz` file, or a folder of `.npy` files named after their arrays. Never pickles."""


class Safetensors(Arrays):
    """A safetensors file."""


class HuggingFace(Table):
    """A data set that `save_to_disk` of Hugging Face's `datasets` wrote.

    A `DatasetDict` is put apart by its own splits `train`, `validation` and `test`.
    """


class DataPart(OneOf, LoadingFields):
    """Which rows it learns from."""

    choices = (
        "digits", "iris", "wine", "breast_cancer", "diabetes", "csv", "parquet", "image_folder",
        "numpy", "safetensors", "huggingface", "target",
    )  # fmt: skip
    first_by_default: ClassVar[bool] = False

    digits: Shares | None = None
    """scikit-learn's 1,797 digits: `image`, FP32 [rows, 1, 8, 8], and 10 classes."""
    iris: Shares | None = None
    """scikit-learn's 150 irises: `features`, FP32 [rows, 4], and 3 classes."""
    wine: Shares | None = None
    """scikit-learn's 178 wines: `features`, FP32 [rows, 13], and 3 classes."""
    breast_cancer: Shares | None = None
    """scikit-learn's 569 tumours: `features`, FP32 [rows, 30], and 2 classes."""
    diabetes: Shares | None = None
    """scikit-learn's 442 patients: `features`, FP32 [rows, 10] in their own units, and a number,
    the disease's progress after a year, 25 to 346."""
    csv: Csv | None = None
    """A CSV file. Take it for tables of up to some millions of rows."""
    parquet: Parquet | None = None
    """A Parquet file. Take it for tables, rather than CSV, where there is a choice."""
    image_folder: ImageFolder | None = None
    """Images in a folder for each class. Take it for pictures."""
    numpy: Numpy | None = None
    """Arrays of NumPy. Take it for data that another program has made."""
    safetensors: Safetensors | None = None
    """Arrays of a safetensors file. Take it rather than `numpy` where there is a choice."""
    huggingface: HuggingFace | None = None
    """A data set of Hugging Face's `datasets` on disk. Take it for what was downloaded there."""
    target: str | None = None
    """A function that returns the splits (see `training.datasets`); it is called with `args` and,
    if it has a parameter `seed`, with the seed of the run. Take it for data that none of the others
    reads."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of `target`. Give `seed` here to keep the same splits while the seed of the
    run changes."""
    batch_size: int = Field(default=64, ge=1, le=65_536)
    """Rows of one batch. Raise it for speed on large data, and the learning rate with
    it; lower it when memory runs out."""

    @model_validator(mode="after")
    def _args_of_a_target(self) -> "DataPart":
        if self.args and self.target is None:
            raise ValueError(f"args belong to a target, and the data is {self.choice}; drop args")
        return self

    @property
    def name(self) -> str:
        """What to call the data in messages: its target, or the source's name."""
        return self.target or self.choice
