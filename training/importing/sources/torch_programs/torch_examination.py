"""Examines models that run in torch: modules, programs and packages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flambeau.protocol.signature import SizeLimit
from flambeau.protocol.tensors import Array, datatype_of
from flambeau.publishing.network_outputs import OutputError, named_outputs
from training.errors import SourceError
from training.importing.sources.examination import Run
from training.importing.sources.read_tensor import BATCH, ReadTensor, with_batch_axes
from training.importing.sources.source_options import ONLY_INPUT, SourceOptions


def torch_run(
    where: str, call: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str] = ()
) -> Run:
    """Returns a function that runs a model in torch on one thread.

    Args:
        where: the file, for messages.
        call: takes the inputs in order.
        inputs: their names.
        outputs: names of the outputs, in order; empty for those of the model.
    """
    torch.set_num_threads(1)

    def run(batch: Mapping[str, Array]) -> dict[str, Array]:
        arguments = [torch.from_numpy(batch[name].copy()) for name in inputs]
        with torch.inference_mode():
            found = call(*arguments)
        try:
            named = named_outputs(found, outputs or None)
        except OutputError as error:
            raise SourceError(f"{where}: {error}") from error
        return {name: _array(where, name, tensor) for name, tensor in named.items()}

    return run


def is_in_order(found: object) -> bool:
    """Returns True for a result that servers take: a tensor, or a tuple or list of tensors."""
    if isinstance(found, Tensor):
        return True
    plain = isinstance(found, list) or type(found) is tuple
    return plain and all(isinstance(one, Tensor) for one in found)  # type: ignore[attr-defined]


def tensors_of_examples(
    names: Sequence[str], options: SourceOptions
) -> tuple[ReadTensor, ...] | None:
    """Returns inputs as the examples show them, in order; None without examples.

    The first dimension is the batch, unless the options name another or none: the array then has
    the model's own form. Further dimensions vary if the options say so.

    Args:
        names: inputs in the order of the model's arguments.
        options: the examples, and the limits of dimensions.

    Raises:
        SourceError: an example does not name an input, or has no dimension.
    """
    if options.examples is None:
        return None
    given = named_by(names, options.examples)
    if len(names) == 1 and len(given) == 1 and names[0] not in given:
        names = list(given)  # the only input may have any name
    if len(given) > len(names) or not set(given) <= set(names):
        raise SourceError(
            f"the examples name {', '.join(given)}, and the model's arguments are "
            f"{', '.join(names)}; name the arrays so"
        )
    found = []
    for name in (n for n in names if n in given):
        array = given[name]
        batch = options.batch_axes.get(name, 0)
        if array.ndim == 0 and batch is not None:
            raise SourceError(
                f"the example '{name}' has no rows; give an array [rows, ...], or --batch-axis "
                f"{name}=none for an input without a batch"
            )
        ranges: dict[int, SizeLimit] = {**options.dynamic.get(name, {})}
        dims = tuple(
            BATCH if axis == batch else f"{name}_{axis}" if axis in ranges else size
            for axis, size in enumerate(array.shape)
        )
        found.append(ReadTensor(name=name, datatype=datatype_of(array), dims=dims, ranges=ranges))
    return tuple(with_batch_axes("the model", found, options))


def named_by(names: Sequence[str], examples: Mapping[str, Array]) -> Mapping[str, Array]:
    """Returns the examples; one without a name gets the name of the first argument."""
    if list(examples) == [ONLY_INPUT] and names:
        return {names[0]: examples[ONLY_INPUT]}
    return examples


def _array(where: str, name: str, tensor: Tensor) -> Array:
    try:
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        raise SourceError(
            f"output '{name}' of {where} is {tensor.dtype}, which servers cannot answer with; "
            "return another type of numbers, such as FP32"
        ) from error
