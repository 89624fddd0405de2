"""Tensors of a Triton configuration: datatypes, shapes, order.

Source: Triton's model configuration; of its PyTorch backend, tensors named `NAME__0` are in that
order.
"""

import re

from flambeau.protocol.datatypes import DATATYPE_NAMES
from flambeau.protocol.strict import nearest_name
from training.errors import SourceError
from training.importing.sources.read_tensor import BATCH, UNNAMED, Dimension, ReadTensor
from training.importing.sources.triton.protobuf_text import Message


def config_tensor(
    where: str, what: str, message: Message, most: int, name_field: str = "name"
) -> ReadTensor:
    """Returns a tensor with its batch.

    Args:
        where: the configuration, for messages.
        what: kind of the tensor, for messages.
        message: the tensor in the configuration.
        most: `max_batch_size`.
        name_field: field with its name.

    Raises:
        SourceError: its datatype is unknown, or a size is out of range.
    """
    name = message.text(name_field)
    datatype = config_datatype(where, f"{what} '{name[:80]}'", message)
    reshaped = message.messages("reshape")
    sizes = reshaped[-1].numbers("shape") if reshaped else message.numbers("dims")
    if any(size < -1 or size > 2**40 for size in sizes) or len(sizes) > 32:
        raise SourceError(f"{where}: {what} '{name[:80]}' has the dims {sizes[:8]}")
    dims: list[Dimension] = [UNNAMED if size == -1 else size for size in sizes]
    if most > 0:
        dims = [BATCH, *dims]
    elif dims and dims[0] == UNNAMED:
        dims[0] = BATCH
    return ReadTensor(name=name, datatype=datatype, dims=tuple(dims))


def config_datatype(where: str, what: str, message: Message) -> str:
    """Returns the datatype of a tensor, as the protocol names it.

    Raises:
        SourceError: Triton has no such type.
    """
    stated = message.text("data_type")
    datatype = "BYTES" if stated == "TYPE_STRING" else stated.removeprefix("TYPE_")
    if datatype not in DATATYPE_NAMES:
        known = [f"TYPE_{n}" for n in DATATYPE_NAMES if n != "BYTES"] + ["TYPE_STRING"]
        raise SourceError(
            f"{where}: {what} has the data_type {stated[:40]!r}{nearest_name(stated, known)}"
        )
    return datatype


def in_order(tensors: tuple[ReadTensor, ...]) -> tuple[ReadTensor, ...]:
    """Returns tensors by the position in their names, if all have one."""
    places = [re.search(r"__(\d{1,4})$", tensor.name) for tensor in tensors]
    if not all(places):
        return tensors
    order = sorted(range(len(tensors)), key=lambda i: int((places[i] or [0, 0])[1]))
    return tuple(tensors[i] for i in order)
