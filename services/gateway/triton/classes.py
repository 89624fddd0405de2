"""What a request asks of classification: the number of classes by output, and their labels.

In: the output parameter `classification`. Out: `Classes`, which `classification.py` finds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flambeau.protocol.signature import Signature
from services.errors import InvalidRequestError, UnsupportedError

PARAMETER = "classification"
_WITHOUT_ORDER = ("BOOL", "BYTES")


class ClassesOf(NamedTuple):
    """The classes that a request wants of one output."""

    most: int
    """Number of classes of a row."""
    batch_axis: int | None
    labels: Sequence[str]
    """Label of each element of a row; empty for none."""


Classes = Mapping[str, ClassesOf]
"""By output."""


def checked_count(value: object, output: str) -> int:
    """Returns the number of classes that the parameter of an output asks for; 0 for none.

    Raises:
        InvalidRequestError: it is no whole number from 0 up.
    """
    if type(value) is not int or value < 0:
        raise InvalidRequestError(
            f"output '{output:.200}' has classification {value!r:.60}; give the number of classes, "
            "a whole number from 0 up"
        )
    return value


def refuse_in_jobs(counts: Mapping[str, int]) -> None:
    """Refuses classification of a job, whose result keeps the outputs.

    Raises:
        UnsupportedError: there is some.
    """
    if counts:
        raise UnsupportedError(
            f"output '{next(iter(counts)):.200}' has classification, which jobs do not offer; "
            "leave it out, and find the largest values of the result"
        )


def classes_of(counts: Mapping[str, int], signature: Signature) -> Classes:
    """Returns the classes that are wanted of a model's outputs; unknown ones are left out.

    Args:
        counts: number of classes by output, above 0.
        signature: of the model.

    Raises:
        InvalidRequestError: an output has no numbers.
    """
    found = {}
    for spec in signature.outputs:
        if spec.name not in counts:
            continue
        if spec.datatype in _WITHOUT_ORDER:
            raise InvalidRequestError(
                f"class result not available for output '{spec.name}' due to unsupported type "
                f"'{spec.datatype}'; ask for it without classification"
            )
        sizes = [size for axis, size in enumerate(spec.shape) if axis != spec.batch_axis]
        labels = signature.labels.get(spec.name, ())
        if sizes != [len(labels)]:
            labels = ()  # they name the last axis of several
        found[spec.name] = ClassesOf(counts[spec.name], spec.batch_axis, labels)
    return found
