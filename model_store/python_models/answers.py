"""Turns the values that a Python model returns into arrays, and checks them. Pure NumPy.

In: a mapping by output name or a single value, for a batch or for one row. Out: an array for each
output of the signature, [rows, ...], in its datatype.

Rule: nothing is converted but text to BYTES, and empty lists, which have no datatype: another
datatype than the signature's is an error of the model.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from flambeau.protocol.signature import TensorSpec
from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import (
    DATATYPES,
    Array,
    TensorError,
    as_bytes,
    datatype_of,
    object_array,
)

MAX_ANSWER_BYTES = 2**30
"""Limit of the outputs of one batch: a process shares them with the server by its memory."""
MAX_TEXT_BYTES = 2**22
"""The same for text, which each process between the model and its caller copies, one text in one
piece. A text of this size stalls other callers of the server for 7 ms as JSON, 5 ms by gRPC and
2 ms as binary data over REST; one of 32 MiB for 88, 25 and 23 ms (2 busy cores, the healthy client
of `tests/adversarial`)."""
MAX_FOLDER_TEXT_BYTES = 2**26
"""The same for a model that is served from a folder (`manifest.ModelFolder`): its answers are
bodies of HTTP, which are passed on as they are. Ten times TorchServe's limit of one answer."""
SINGLE_OUTPUT = "output"
"""Name of an output that is returned without one, if no signature names it."""


class AnswerError(Exception):
    """The model returned something that its signature does not have."""


class Answers:
    """Checks the answers of one model.

    Args:
        method: name of the class and method, for messages.
        specs: outputs of the signature; None accepts all, to find out what the model returns.
        most_text_bytes: limit of an output of text in a batch.
    """

    def __init__(
        self,
        method: str,
        specs: Sequence[TensorSpec] | None,
        most_text_bytes: int = MAX_TEXT_BYTES,
    ) -> None:
        self._method, self._most_text_bytes = method, most_text_bytes
        self._specs = None if specs is None else {spec.name: spec for spec in specs}
        # Type and further dimensions of outputs that can be checked at a glance.
        self._plain = {
            spec.name: (DATATYPES[spec.datatype], spec.shape[1:])
            for spec in specs or ()
            if -1 not in spec.shape[1:] and spec.datatype != "BYTES"
        }

    def of_batch(self, found: object, rows: int) -> dict[str, Array]:
        """Returns the outputs of a batch.

        Args:
            found: the model's value.
            rows: number of rows of the batch.

        Raises:
            AnswerError: its form, a name, datatype, shape or size is not the signature's.
        """
        named = self._named(found)
        arrays: dict[str, Array] = {}
        for name in named if self._specs is None else self._specs:
            value = named[name]
            plain = self._plain.get(name)
            if (
                plain is None
                or type(value) is not np.ndarray
                or value.dtype != plain[0]
                or value.shape[1:] != plain[1]
                or value.shape[:1] != (rows,)
            ):
                value = self._checked(name, self._array(name, value, rows), rows)
            arrays[name] = value
        return arrays

    def of_rows(self, found: Sequence[object]) -> dict[str, Array]:
        """Returns the outputs of a batch whose rows were answered one by one.

        Args:
            found: the model's value for each row.

        Raises:
            AnswerError: as `of_batch`; or two rows have different shapes.
        """
        named = [self._named(value) for value in found]
        names = list(named[0] if self._specs is None else self._specs)
        return {name: self._joined(name, [row[name] for row in named]) for name in names}

    def _named(self, found: object) -> Mapping[str, object]:
        """Returns the values by name; a mapping has exactly the names of the signature."""
        names = None if self._specs is None else self._specs.keys()
        if isinstance(found, Mapping):
            if names is None or found.keys() == names:
                if not found:
                    raise AnswerError(
                        f"{self._method} returned nothing; return the outputs by name"
                    )
                return found
            odd = next((name for name in found if name not in names), None)
            if odd is not None:
                raise AnswerError(
                    f"{self._method} returned '{odd}', which is no output"
                    f"{nearest_name(str(odd), names)}"
                )
            missing = next(name for name in names if name not in found)
            raise AnswerError(
                f"{self._method} did not return output '{missing}'; the signature has "
                f"{', '.join(names)}"
            )
        if found is None or (names is not None and len(names) > 1):
            raise AnswerError(
                f"{self._method} returned a {type(found).__name__}; return a dict of the outputs "
                "by name"
            )
        return {next(iter(names or (SINGLE_OUTPUT,))): found}

    def _joined(self, name: str, values: list[object]) -> Array:
        plain = self._plain.get(name)
        if plain is not None and all(
            type(v) is np.ndarray and v.dtype == plain[0] and v.shape == plain[1] for v in values
        ):
            joined = np.empty((len(values), *plain[1]), plain[0])
            for row, value in enumerate(values):
                joined[row] = value
            return joined
        arrays = [self._array(name, value, None) for value in values]
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            texts = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise AnswerError(
                f"{self._method} returned '{name}' of shapes {texts} for two rows of a batch; "
                "return equal shapes, or publish the model with max_batch_size=1"
            )
        if arrays[0].dtype.hasobject:
            flat = object_array([text for array in arrays for text in array.ravel().tolist()])
            return self._checked(name, flat.reshape(len(arrays), *arrays[0].shape), len(arrays))
        return self._checked(name, np.stack(arrays), len(arrays))

    def _array(self, name: str, value: object, rows: int | None) -> Array:
        """Returns a value as an array; text and bytes as an object array of `bytes`.

        `rows` is None for the value of one row.
        """
        if isinstance(value, str | bytes) and rows is not None:
            value = [value]
        try:
            if isinstance(value, str | bytes):
                array = np.empty((), object)
                array[()] = as_bytes(value)
                return array
            if isinstance(value, list | tuple) and _is_text(value):
                return object_array([v if type(v) is bytes else as_bytes(v) for v in value])
            array = np.asarray(value)
            if not array.size and array is not value and self._specs is not None:  # an empty list
                return array.astype(DATATYPES[self._specs[name].datatype])
            if array.dtype.kind in "OSU":
                flat = object_array([as_bytes(element) for element in array.ravel().tolist()])
                return flat.reshape(array.shape)
        except TensorError as error:
            raise AnswerError(f"{self._method} returned '{name}' with {error}") from error
        except Exception as error:  # NumPy converts objects of any type by their own code
            raise AnswerError(
                f"{self._method} returned '{name}' as a {type(value).__name__}, which is no array: "
                f"{error}"
            ) from error
        return array

    def _checked(self, name: str, array: Array, rows: int) -> Array:
        if array.shape[:1] != (rows,):
            raise AnswerError(
                f"{self._method} returned '{name}' of shape {list(array.shape)} for {rows} rows; "
                "its first dimension must be the batch"
            )
        try:
            datatype = datatype_of(array)
        except TensorError as error:
            raise AnswerError(f"{self._method} returned '{name}': {error}") from error
        size_bytes, most = array.nbytes, MAX_ANSWER_BYTES
        if datatype == "BYTES":
            size_bytes, most = sum(map(len, array.ravel().tolist())), self._most_text_bytes
        if size_bytes > most:
            raise AnswerError(
                f"{self._method} returned '{name}' of {size_bytes:,} bytes; at most {most:,} fit, "
                "so lower max_batch_size or return less"
            )
        spec = None if self._specs is None else self._specs[name]
        if spec is not None and spec.datatype == "BF16" and datatype == "UINT16":
            datatype = "BF16"  # NumPy has no such type: these are its bits
        if spec is not None and (datatype != spec.datatype or not spec.fits(array.shape)):
            raise AnswerError(
                f"{self._method} returned '{name}' as {datatype} {list(array.shape)}; the "
                f"signature has {spec.datatype} {list(spec.shape)}"
            )
        return array


def _is_text(values: Sequence[object]) -> bool:
    if set(map(type, values)) == {bytes}:
        return True
    return bool(values) and all(isinstance(value, str | bytes) for value in values)
