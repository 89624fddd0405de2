"""Options of reading a model, as the user gives them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flambeau.protocol.tensors import Array
from training.recipe.recipe import ExportLimits

DEFAULT_MAX_BATCH_SIZE = 32
ONLY_INPUT = ""
"""Name of an example of a model with one input, whose name the user did not give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Facts that files do not contain."""

    network: str = ""
    """Class that a file of weights belongs to: `file.py:Net` or `package.module:Net`."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of that class."""
    allow_pickle: bool = False
    """True to unpickle more than plain weights: a pickle can run any code."""
    allow_native_code: bool = False
    """True to open packages of native code, which runs then."""
    examples: Mapping[str, Array] | None = None
    """Example inputs by name, [rows, ...], or one of the name `ONLY_INPUT`; None to make them up
    where that is possible."""
    model: str = ""
    """The model of a repository to read; empty for all of them."""
    max_batch_size: int | None = None
    """Largest batch in rows; None for the source's own, or `DEFAULT_MAX_BATCH_SIZE`."""
    dynamic: Mapping[str, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    """Smallest and largest size by input and axis."""
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    """Batch axis of inputs where the file cannot tell it; None for an input without a batch."""
    limits: ExportLimits = field(default_factory=ExportLimits)
    """Time and memory of the processes that open files."""
