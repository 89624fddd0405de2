"""The `data` part of a recipe: the source of the rows. Pure.

One key names the source, as in `data: {csv: {path: houses.csv, label: price}}`. The readers are in
`training.sources`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from flambeau.protocol.strict import Matching
from flambeau.protocol.tensor_spec import TensorName
from training.recipe.parts.loading_parts import LoadingFields
from training.recipe.parts.one_of import OneOf
from training.recipe.parts.recipe_part import RecipePart

MAX_SIDE = 16_384
"""Largest side of an image in pixels."""
Dtype = Literal["fp32", "fp64", "int64", "int32", "uint8", "bool", "text"]
Share = Annotated[float, Field(gt=0, lt=1)]


class BySplit(RecipePart):
    """One text for each split."""

    train: str = Field(min_length=1)
    """For the training rows."""
    validation: str | None = Field(default=None, min_length=1)
    """For the validation rows, which choose the best epoch; null cuts `validation_share` off the
    `train` rows. Give it where the data is already split."""
    test: str | None = Field(default=None, min_length=1)
    """For the test rows, which give the final metrics; null cuts `test_share` off the `train` rows.
    Give it where the data is already split."""


Text = Annotated[str, Field(min_length=1)]
PathOrPaths = Text | BySplit
"""A path from the working directory; in the training service that is the bundle's folder."""
NameOrNames = Text | BySplit
"""The name of an array, or one for each split."""


class Shares(RecipePart):
    """Split of rows from one source; every split keeps the class proportions."""

    validation_share: Share = 0.15
    """Share of the non-test rows used for validation. Raise it when the metric jumps from epoch to
    epoch."""
    test_share: Share = 0.2
    """Share of all rows used for testing. Raise it for small data, whose metrics are noisy."""
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    """Seed of the split; null for the seed of the run. Give it to keep the same splits while the
    seed of the run changes."""


def _as_columns(value: Any) -> Any:
    return {"columns": value} if isinstance(value, str | list | tuple) else value


class Columns(RecipePart):
    """Columns that make one tensor."""

    columns: Text | tuple[Text, ...] = Field(min_length=1)
    """A list gives [rows, columns]; a single name gives [rows], or [rows, T] if the cells of a
    Parquet column are lists of T numbers."""
    dtype: Dtype = "fp32"
    """Type of the tensor. Take `int64` for inputs of an embedding, `text` for a `python` step of
    `preprocess`."""

    def names(self) -> tuple[str, ...]:
        """Returns the column names, one or several, as a tuple."""
        return (self.columns,) if isinstance(self.columns, str) else self.columns


ColumnsOrNames = Annotated[
    Columns,
    BeforeValidator(_as_columns, json_schema_input_type=Text | tuple[Text, ...] | Columns),
]


class Table(Shares):
    """Rows with named columns."""

    path: PathOrPaths
    """The file, or one for each split as in `{train: a, test: b}`."""
    label: Text | tuple[Text, ...] = Field(min_length=1)
    """Column of the labels; a list for several labels per row. Text labels are class names; give
    `labels` of the recipe for a class order other than alphabetical."""
    inputs: dict[TensorName, ColumnsOrNames] = Field(default={})
    """The model's inputs in order, each with its columns, as in `{features: [age, income]}`; empty
    makes one input `features` of all remaining columns. Give it to leave some out."""
    split_column: Text | None = None
    """Column that holds `train`, `validation` or `test` for each row; null splits by shares. Give
    it where the data is already split."""
    missing: float | None = None
    """Fill value for missing inputs; null refuses rows with missing inputs. Give a number that does
    not occur in the data."""

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
        """Returns the label columns, one or several, as a tuple."""
        return (self.label,) if isinstance(self.label, str) else self.label

    def special(self) -> tuple[str, ...]:
        """Returns the columns that are not inputs."""
        return self.labels() if self.split_column is None else (*self.labels(), self.split_column)


class Csv(Table):
    """A file of comma-separated values in UTF-8, whose first line names the columns."""

    delimiter: Annotated[str, Matching(r"^[^\r\n\"]$", "one character, such as ;")] = ","
    """Separator between cells. Give `;` or a tab for files that use it."""


class Parquet(Table):
    """A Parquet file."""


class ImageFolder(Shares):
    """Images in one folder per class."""

    path: PathOrPaths
    """Folder that holds the class folders, or one for each split as in `{train: a, test: b}`."""
    size: (
        tuple[Annotated[int, Field(ge=1, le=MAX_SIDE)], Annotated[int, Field(ge=1, le=MAX_SIDE)]]
        | None
    ) = None
    """Height and width to which all images are resized; null requires images of one size. Give it
    for photographs."""
    mode: Literal["RGB", "L"] = "RGB"
    """Three colour channels (`RGB`), or one grey channel (`L`)."""
    dtype: Literal["fp32", "uint8"] = "fp32"
    """FP32 from 0 to 1, or bytes from 0 to 255. Take `uint8`, with `scale` in `preprocess`, for a
    quarter of the memory and for clients that send bytes."""
    input: TensorName = "image"
    """The model's input: [rows, channels, height, width]."""


class Arrays(Shares):
    """Named arrays, one of which holds the labels."""

    path: PathOrPaths
    """The file, or one for each split as in `{train: a, test: b}`."""
    inputs: dict[TensorName, NameOrNames] = Field(min_length=1)
    """The model's inputs in order, each with the name of its array [rows, ...], as in `{image: x}`;
    one file may hold the arrays of all splits, as in `{image: {train: x_train, test: x_test}}`."""
    label: NameOrNames
    """Name of the label array, [rows] or [rows, T]."""


class Numpy(Arrays):
    """An `.npz` file, or a folder of `.npy` files named after their arrays. Pickles are refused."""


class Safetensors(Arrays):
    """A safetensors file."""


class HuggingFace(Table):
    """A data set written by `save_to_disk` of Hugging Face's `datasets`.

    A `DatasetDict` is split by its own `train`, `validation` and `test`.
    """


class DataPart(OneOf, LoadingFields):
    """The training, validation and test rows."""

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
    """scikit-learn's 442 patients: `features`, FP32 [rows, 10] in their original units, and a
    number, the disease progression after a year, 25 to 346."""
    csv: Csv | None = None
    """A CSV file. Take it for tables of up to a few million rows."""
    parquet: Parquet | None = None
    """A Parquet file. Prefer it to CSV for tables."""
    image_folder: ImageFolder | None = None
    """Images in one folder per class. Take it for image classification."""
    numpy: Numpy | None = None
    """NumPy arrays. Take it for data that another program has written."""
    safetensors: Safetensors | None = None
    """Arrays of a safetensors file. Prefer it to `numpy`."""
    huggingface: HuggingFace | None = None
    """A data set of Hugging Face's `datasets` on disk. Take it for data sets downloaded with it."""
    target: str | None = None
    """A function that returns the splits (see `training.datasets`); it is called with `args` and,
    if it has a parameter `seed`, with the seed of the run. Take it for data that no other source
    reads."""
    args: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of `target`. Give `seed` here to keep the same splits while the seed of the
    run changes."""
    batch_size: int = Field(default=64, ge=1, le=65_536)
    """Rows per batch. Raise it for speed on large data, together with the learning rate; lower it
    when memory runs out."""

    @model_validator(mode="after")
    def _args_of_a_target(self) -> "DataPart":
        if self.args and self.target is None:
            raise ValueError(f"args belong to a target, and the data is {self.choice}; drop args")
        return self

    @property
    def name(self) -> str:
        """Name of the data in messages: its target, or the source's name."""
        return self.target or self.choice
