"""Messages of tritonclient's .proto for single requests."""

from typing import Any

import numpy as np

from flambeau.protocol.tensors import DATATYPES
from tests.fixtures.triton_messages import pb


def request(
    model: str, name: str, values: Any, datatype: str = "FP32", id: str = "", **parameters: Any
) -> Any:
    """Returns a request with one input in raw form.

    Args:
        model: its name.
        name: name of the input.
        values: nested list of numbers.
        datatype: of the input.
        id: of the request.
        parameters: of the request; booleans, whole numbers or texts.
    """
    array = np.array(values, DATATYPES[datatype])
    message = pb.ModelInferRequest(model_name=model, id=id)
    message.inputs.add(name=name, datatype=datatype, shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param"}
    for key, value in parameters.items():
        setattr(message.parameters[key], kinds[type(value)], value)
    return message


def step(
    sequence: int | str, value: float, *, start: bool = False, end: bool = False, id: str = ""
) -> Any:
    """Returns a step of a sequence of the model `sum`."""
    return request(
        "sum", "x", [[value]], id=id, sequence_id=sequence, sequence_start=start, sequence_end=end
    )


def text_request(text: bytes, times: int, id: str = "") -> Any:
    """Returns a request to the model `say`."""
    message = pb.ModelInferRequest(model_name="say", id=id)
    message.inputs.add(name="text", datatype="BYTES", shape=[1])
    message.inputs.add(name="times", datatype="INT32", shape=[1])
    raw = len(text).to_bytes(4, "little") + text
    message.raw_input_contents.extend((raw, times.to_bytes(4, "little")))
    return message
