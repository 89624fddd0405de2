"""The network of a recipe: builds it, tries it before any training, and prepares it for export."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from flambeau.protocol.signature import Signature, SignatureError, TensorSpec
from flambeau.protocol.strict import explain
from flambeau.protocol.tensors import Array, datatype_of
from flambeau.publishing.network_outputs import named_outputs
from model_store.arrays.padded_rows import own_lengths, padded_rows
from model_store.arrays.sized_rows import at_other_sizes
from training.errors import DataError, RecipeError, TargetError
from training.loading.label_fit import check_labels_fit
from training.loading.splits import Splits
from training.network.initialisation import initialise
from training.network.network_trial import NetworkTrial, shapes_text, tensors_of
from training.network.preprocessing import change_network, network_of, preprocessed, try_steps
from training.recipe.kinds.export_kinds import EXPORT_KINDS
from training.recipe.kinds.onnx_kind import OnnxExport
from training.recipe.recipe import Recipe
from training.recipe.targets import call_named, call_target, load_target


def build_model(recipe: Recipe, input_names: Sequence[str] = ()) -> nn.Module:
    """Builds the network from the current random state, with its `preprocess` before it.

    Args:
        recipe: has the network; its statistics are measured.
        input_names: names of the inputs, in order. Only a recipe with `preprocess` needs them.

    Raises:
        TargetError: the target cannot be found, does not take its arguments, is no module, or has
            weights that no checkpoint can keep.
        RecipeError: a step of `preprocess` names an input that does not exist, or `model.init` a
            type of layer.
    """
    if isinstance(load_target(recipe.model.target, "model.target"), nn.Module):
        raise TargetError(
            f"model.target {recipe.model.target} is a network, not a factory; name its class, or a "
            "function that returns it, so that every process can create its own"
        )
    model = call_target(recipe.model.target, recipe.model.args, "model")
    if not isinstance(model, nn.Module):
        raise TargetError(
            f"model.target {recipe.model.target} made a {type(model).__name__}; "
            "name a torch.nn.Module"
        )
    _check_sizes_known(model, recipe.model.target)
    _check_whole_memory(model, recipe.model.target)
    initialise(model, recipe.model.init)
    return preprocessed(recipe, model, input_names)


def for_export(model: nn.Module) -> nn.Module:
    """Returns the form of a trained network that exporters support.

    A module that they do not support has a method `export_twin(self) -> nn.Module`: the same
    function of the same inputs with the same weights, in operations that can be exported. Every
    artifact is compared with the module itself, so a twin that differs is found.

    Args:
        model: the model in evaluation mode.

    Returns:
        The twin in evaluation mode; the module itself if it has none.

    Raises:
        TargetError: the twin is no module.
    """
    return change_network(model, _twin).eval()


def _twin(network: nn.Module) -> nn.Module:
    make = getattr(network, "export_twin", None)
    named = f"{type(network).__name__}.export_twin"
    twin = network if make is None else call_named(make, named)
    if not isinstance(twin, nn.Module):
        raise TargetError(
            f"{type(network).__name__}.export_twin returned a {type(twin).__name__}; "
            "return a torch.nn.Module"
        )
    return twin


def try_model(model: nn.Module, splits: Splits, recipe: Recipe) -> Signature:
    """Runs a few rows, so that a mismatch fails here with a message and not after the training.

    Returns:
        The signature: inputs as in the data, outputs as the model returns them.

    Raises:
        TargetError: the model fails, returns another number of outputs than the recipe names, or
            one that a server cannot return (see `NetworkTrial`), its outputs do not have the shape
            that the labels require, or it lacks the arguments of teacher forcing.
        DataError: a label is not one of the classes, or a row does not match the padding or the
            dynamic axes.
        RecipeError: the padding or the dynamic axes do not match the model's inputs and outputs, or
            the labels do not match `stop.metric`.
    """
    inputs = {name: array[:2] for name, array in splits.train.inputs.items()}
    try_steps(model.eval(), recipe, list(inputs), tensors_of(list(inputs.values())))
    trial = NetworkTrial(model.eval(), recipe.model.target, recipe.model.outputs)
    with _same_random_numbers():
        outputs = trial.run(inputs)
        axes = {} if recipe.padding is None else recipe.padding.outputs
        trial.check_rows(splits.train.inputs, axes, max(recipe.max_batch_size, 2))
        trial.check_repeats(inputs)
        for_export(model)
    named = dict(zip(recipe.model.outputs, outputs, strict=True))
    _check_names_apart(recipe, list(inputs))
    _check_embeddings(recipe, named)
    check_labels_fit(named, splits, recipe, shapes_text(inputs))
    _check_teaching(model, recipe)
    signature = _signature(recipe, inputs, outputs)
    if signature.padding is not None:
        _try_shorter_rows(trial, splits, signature)
    if signature.dynamic:
        signature = _try_other_sizes(trial, inputs, signature)
    return signature


def run_model(
    model: Callable[..., Any], inputs: list[Array], names: Sequence[str] | None = None
) -> dict[str, Array]:
    """Runs a model once, without gradients.

    Args:
        model: a module in its mode, or a function.
        inputs: its arguments in order, each [rows, ...].
        names: names of its outputs; see `named_outputs`.
    """
    with torch.inference_mode():
        found = named_outputs(model(*tensors_of(inputs)), names)
    return {name: tensor.numpy() for name, tensor in found.items()}


Outputs = Any
"""The result of a model: a tensor, or a tuple, dictionary or dataclass of them."""


def outputs_of(found: Outputs) -> tuple[Tensor, ...]:
    """Returns all outputs of a model, in order."""
    # Named only where it has names: this runs at every step of training.
    if isinstance(found, Tensor):
        return (found,)
    return tuple(found if isinstance(found, tuple) else named_outputs(found).values())


def first_output(found: Outputs) -> Tensor:
    """Returns the output that evaluates a model: its only one, or the first of several."""
    return outputs_of(found)[0]


def _check_sizes_known(model: nn.Module, target: str) -> None:
    """Checks that no layer is lazy: weights are loaded into copies that have run no row.

    Raises:
        TargetError: a layer is lazy.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, tensor in tensors if nn.parameter.is_lazy(tensor)]
    if lazy:
        raise TargetError(
            f"model.target {target} has lazy layers, whose sizes are unknown before they run "
            f"({', '.join(lazy[:3])}); give their sizes, such as nn.Linear(4, 3) in place of "
            "nn.LazyLinear(3)"
        )


def _check_whole_memory(model: nn.Module, target: str) -> None:
    """Checks that a checkpoint can keep each tensor: safetensors accepts no partial views.

    Raises:
        TargetError: a tensor is expanded, a slice of other memory, or a transposed view.
    """
    sharing: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.numel():
            sharing.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    for tensors in sharing.values():
        size_bytes = tensors[0][1].untyped_storage().nbytes()
        is_kept = any(tensor.nbytes == size_bytes for _, tensor in tensors)
        turned = [name for name, t in tensors if len(tensors) > 1 and not t.is_contiguous()]
        if turned or not is_kept:
            raise TargetError(
                f"model.target {target}: '{[*turned, tensors[0][0]][0]}' is a view of other memory "
                "(expand, a slice, a transposed weight), which no checkpoint can keep; give it its "
                "own, as x.clone(), or make the view in forward"
            )


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restores the random state after a trial of the network."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _check_embeddings(recipe: Recipe, outputs: Mapping[str, Array]) -> None:
    """Checks that outputs compared by their direction have one.

    Raises:
        RecipeError: an output is no vector of floats for each row.
    """
    for name in recipe.model.embeddings:
        found = outputs[name]
        if found.dtype.kind != "f" or found.ndim < 2 or found.shape[-1] < 2:
            raise RecipeError(
                f"model.embeddings names '{name}', which is {found.dtype} {list(found.shape)} for "
                "two rows; name outputs that are vectors of floats, [rows, D]"
            )


def _check_names_apart(recipe: Recipe, inputs: Sequence[str]) -> None:
    """Checks that no output has an input's name, if a graph has one list of names for both.

    Raises:
        RecipeError: one has, and the recipe asks for such a graph.
    """
    same = [name for name in recipe.model.outputs if name in inputs]
    kinds = {entry.kind for entry in recipe.listed_exports()} or {OnnxExport().kind}
    joined = sorted(kind for kind in kinds if EXPORT_KINDS[kind].one_list_of_names)
    if same and joined:
        raise RecipeError(
            f"model.outputs names '{same[0]}', and the data has an input of that name; a graph of "
            f"{' or '.join(joined)} has one list of names for both: "
            "give the output another name"
        )


def _try_shorter_rows(trial: NetworkTrial, splits: Splits, signature: Signature) -> None:
    """Checks that every split matches the padding, and that the model accepts rows unpadded."""
    assert signature.padding is not None, "only a model with padding has shorter rows"
    for split in (splits.train, splits.validation, splits.test):
        shapes = {name: array.shape for name, array in split.inputs.items()}
        try:
            signature.padding.bucket_of(signature.length_of(shapes) or 0)
            own_lengths(split.inputs, signature.padding)
        except SignatureError as error:
            raise DataError(f"the data does not fit the padding: {error}") from error
    try:
        rows = padded_rows(splits.test.golden_inputs(), signature)
    except SignatureError as error:
        raise DataError(str(error)) from error
    for inputs in (rows.alone[0], rows.batches[-1][1]):
        found = zip(signature.outputs, trial.run(inputs), strict=True)
        for spec, array in found:
            if not spec.fits(array.shape):
                raise TargetError(
                    f"model.target {trial.target} gives '{spec.name}' {list(array.shape)} for "
                    f"inputs {shapes_text(inputs)}; padding.outputs must name each axis that varies"
                )


def _try_other_sizes(
    trial: NetworkTrial, inputs: Mapping[str, Array], signature: Signature
) -> Signature:
    """Checks that the model accepts the smallest and the largest sizes.

    Returns:
        The signature; its outputs vary on the axes that differ between sizes.
    """
    given = {name: (datatype_of(array), array.shape) for name, array in inputs.items()}
    try:
        signature.model_copy(update={"max_batch_size": 2}).check_inputs(given)
    except SignatureError as error:
        raise DataError(f"the data does not fit dynamic: {error}") from error
    outputs = list(signature.outputs)
    for sized in at_other_sizes(inputs, signature):
        for place, array in enumerate(trial.run(sized)):
            spec = outputs[place]
            if array.ndim != len(spec.shape):
                raise TargetError(
                    f"model.target {trial.target} gives '{spec.name}' {list(array.shape)} for "
                    f"inputs {shapes_text(sized)}; an output has as many dimensions for every size"
                )
            pairs = zip(spec.shape, array.shape, strict=True)
            shape = tuple(size if size == found else -1 for size, found in pairs)
            outputs[place] = spec.model_copy(update={"shape": shape})
    return signature.model_copy(update={"outputs": tuple(outputs)})


def _signature(recipe: Recipe, inputs: Mapping[str, Array], outputs: list[Array]) -> Signature:
    padding = recipe.padding
    output_axes = {} if padding is None else padding.outputs
    try:
        return Signature(
            inputs=tuple(
                _spec(
                    name,
                    array,
                    None if padding is None else padding.axis_of(name),
                    *recipe.dynamic.get(name, {}),
                )
                for name, array in inputs.items()
            ),
            outputs=tuple(
                _spec(name, array, output_axes.get(name))
                for name, array in zip(recipe.model.outputs, outputs, strict=True)
            ),
            max_batch_size=recipe.max_batch_size,
            padding=padding,
            dynamic=recipe.dynamic,
            labels=recipe.labels,
        )
    except ValidationError as error:
        raise RecipeError(
            f"padding, dynamic or labels does not fit the model: {explain(error, Signature)}"
        ) from error


def _check_teaching(model: nn.Module, recipe: Recipe) -> None:
    if recipe.train.teacher_forcing is None:
        return
    parameters = inspect.signature(network_of(model).forward).parameters
    if not {"targets", "teacher_forcing"} <= set(parameters):
        raise TargetError(
            f"train.teacher_forcing is set, and forward of model.target {recipe.model.target} "
            f"takes {', '.join(parameters)}; let it take targets and teacher_forcing as well"
        )


def _spec(name: str, array: Array, *varying: int | None) -> TensorSpec:
    """Returns the spec of a tensor; the batch axis and the varying axes are -1."""
    shape = (-1 if axis in (0, *varying) else size for axis, size in enumerate(array.shape))
    return TensorSpec(name=name, datatype=datatype_of(array), shape=tuple(shape))
