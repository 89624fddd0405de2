"""Tensors as Triton's model configuration has them. Pure.

One source for the `config.pbtxt` of a version and for the configuration that servers answer with.
Source: Triton's model configuration, "Inputs And Outputs" and "Reshape".
"""

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensor_spec import TensorSpec

Dims = tuple[int, ...]


def has_config_batch(signature: Signature) -> bool:
    """Returns True if dims omit the batch: it is the first axis of every tensor."""
    return signature.is_plain


def config_batch_size(signature: Signature) -> int:
    """Returns `max_batch_size`; 0 where dims are whole shapes."""
    return signature.max_batch_size if has_config_batch(signature) else 0


def config_data_type(datatype: str) -> str:
    """Returns the name of a datatype in the configuration."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def config_dims(spec: TensorSpec, has_batch: bool) -> tuple[Dims, Dims | None]:
    """Returns the dims of a tensor, and their reshape; None for none.

    Args:
        spec: the tensor.
        has_batch: `has_config_batch` of its signature.
    """
    if has_batch:
        return spec.shape[1:] or (1,), None  # dims are not empty: one number a row is [1]
    return (spec.shape, None) if spec.shape else ((1,), ())
