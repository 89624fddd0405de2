"""The profile `compat: triton`: Triton's words for the usual refusals.

In: a request that was refused. Out: Triton 2.51's message for it, to the letter, also where
that has a slip. Status codes stay ours.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from flambeau.protocol.signature import Signature
from services.errors import NoSequenceError, ServingError, SeveralAnswersError

NAME = "triton"
"""The server's name in this profile; perf_analyzer and others branch on it."""
_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)

Tensors = Sequence[tuple[str, str, tuple[int, ...]]]
"""Name, datatype and shape of each input."""
Words = Callable[[Signature, str, str, Tensors, Sequence[str]], str]
"""Returns the message of a refusal, as `refusal`; empty for none of its own."""


def unknown(model: str, version: str) -> str:
    """Returns the message for an unknown model, or an unknown version of a known one."""
    named = f" version {version}" if version else ""
    return f"Request for unknown model: '{model:.200}'{named:.200} is not found"


def of_error(error: ServingError, model: str, protocol: str) -> ServingError:
    """Returns an error of an inference with Triton's message, or as it is where there is none.

    Args:
        error: the error.
        model: name in the request.
        protocol: name of its protocol in the accounting.
    """
    if isinstance(error, NoSequenceError):
        return NoSequenceError(
            f"inference request to model '{model:.200}' must specify a non-zero or non-empty "
            "correlation ID"
        )
    if isinstance(error, SeveralAnswersError):
        where = "ModelInfer RPC" if protocol == "grpc" else "HTTP end point"
        return SeveralAnswersError(
            f"{where} doesn't support models with decoupled transaction policy"
        )
    return error


def refusal(
    given_id: Callable[[str], str],
    signature: Signature,
    model: str,
    request_id: str,
    inputs: Tensors,
    outputs: Sequence[str],
) -> str:
    """Returns the message for a request that its model's signature refuses.

    Args:
        given_id: returns an id that the caller gave; empty for one that the server made.
        signature: of the model.
        model: its name.
        request_id: of the request.
        inputs: of the request.
        outputs: names of the requested outputs.

    Returns:
        Empty where Triton has no such rule.
    """
    request = f"[request id: {given_id(request_id) or '<id_unknown>'}] "
    names = [name for name, _, _ in inputs]
    for name, times in Counter(names).items():
        if times > 1:
            return f"{request}input '{name:.200}' already exists in request"
    known = {spec.name for spec in signature.outputs}
    for name in outputs:
        if name not in known:
            return f"unexpected inference output '{name:.200}' for model '{model}'"
    return _of_inputs(signature, model, request, inputs, names)


def _of_inputs(
    signature: Signature, model: str, request: str, inputs: Tensors, names: list[str]
) -> str:
    specs = {spec.name: spec for spec in signature.inputs}
    required = [spec.name for spec in signature.inputs if not spec.optional]
    if not len(required) <= len(names) <= len(specs):
        missing = [name for name in required if name not in names]
        return (
            f"{request}expected {len(specs)} inputs but got {len(names)} inputs for model "
            f"'{model}'. Got input(s) [{_quoted(names)}], but missing required input(s) "
            f"{'[' if missing else ''}{_quoted(missing)}]. Please provide all required input(s)."
        )
    for name in names:
        if name not in specs:
            return f"unexpected inference input '{name:.200}' for model '{model}'"
    most = signature.max_batch_size
    for name, datatype, shape in inputs:
        spec = specs[name]
        if datatype != spec.datatype:
            return (
                f"{request}inference input '{name}' data-type is '{datatype:.60}', but model "
                f"'{model}' expects '{spec.datatype}'"
            )
        axis = spec.batch_axis
        if axis is not None and len(shape) > axis and shape[axis] > most:
            return f"{request}inference request batch-size must be <= {most} for '{model}'"
        if not spec.fits(shape):
            return (
                f"{request}unexpected shape for input '{name}' for model '{model}'. Expected "
                f"{_shape(spec.shape)}, got {_shape(shape)}. "
                f"{_NOTE if signature.has_batch else ''}"
            )
    return ""


def _quoted(names: Sequence[str]) -> str:
    return ",".join(f"'{name:.60}'" for name in names[:64])


def _shape(sizes: Sequence[int]) -> str:
    return f"[{','.join(map(str, sizes))}]"
