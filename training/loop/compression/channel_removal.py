"""Structured pruning: removes whole channels, and shrinks the layers around them.

In: a trained network. Out: the same network, in place, with fewer channels where the removal is
safe: between a layer and the only layer that reads its output, with only operations on single
channels between them (norms, activations, pooling, dropout, flattening).

Rules: layers that torch.fx cannot follow stay whole, and a pruned network is compared with a copy
in which the readers ignore the same channels: both must give the same outputs. Channels are ranked
by the Euclidean norm of their weights (Li et al., 2017, with the L2 norm).
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from training.errors import RecipeError
from training.loop.compression.pruning import chosen_layers
from training.network.model import first_output
from training.recipe.parts.compression import PrunePart

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
ELEMENTWISE = (
    nn.Dropout,
    nn.ELU,
    nn.GELU,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.Sigmoid,
    nn.SiLU,
    nn.Softplus,
    nn.Tanh,
)
POOLING = tuple(
    getattr(nn, f"{name}{n}d")
    for name in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "Dropout")
    for n in (1, 2, 3)
)
FUNCTIONS = (torch.relu, functional.relu, functional.gelu, functional.silu, torch.tanh)
LARGEST_GAP = 1e-4
"""Largest accepted gap, as a share of the largest output: another order of sums differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A layer whose channels only one other layer reads."""

    writer: str
    norms: tuple[str, ...]
    """Norms between the two."""
    reader: str


def remove_channels(
    model: nn.Module, part: PrunePart, example: tuple[Tensor, ...]
) -> dict[str, tuple[int, int]]:
    """Removes the weakest channels of each chosen layer, in place.

    Args:
        model: the trained network; it is left in evaluation mode.
        part: the share of channels to remove, and the layers.
        example: some inputs in order, each [rows, ...], for the comparison.

    Returns:
        The number of channels of each layer, before and after.

    Raises:
        RecipeError: torch.fx cannot follow the model, a pattern matches no layer that can lose
            channels, or the smaller network's outputs differ.
    """
    links = {link.writer: link for link in removable(model.eval())}
    chosen = chosen_layers({name: model.get_submodule(name) for name in links}, part)
    silenced, sizes = copy.deepcopy(model), {}
    for name, layer in chosen.items():
        weight = layer.weight
        assert isinstance(weight, Tensor), "a layer of a link has weights"
        channels = len(weight)
        count = min(round(channels * part.amount), channels - 1)
        norms = weight.detach().flatten(1).norm(dim=1)
        kept = norms.topk(channels - count).indices.sort().values
        _silence(silenced.get_submodule(links[name].reader), kept, channels)
        _cut(model, links[name], kept, channels)
        sizes[name] = channels, len(kept)
    _check_equal(silenced, model, example)
    return sizes


def removable(model: nn.Module) -> list[Link]:
    """Returns the layers whose channels can be removed, in execution order.

    Raises:
        RecipeError: torch.fx cannot follow the model.
    """
    was_training, found = model.training, []
    try:
        # Some models behave differently in training: a link must hold in both modes.
        for training in (True, False):
            graph = fx.symbolic_trace(model.train(training)).graph
            found.append(_links(model, graph))
    except Exception as error:  # a model's code may do anything to a tracer
        raise RecipeError(
            "prune.structured needs a model that torch.fx can follow, without control flow that "
            f"depends on the data; this one fails: {error}; take structured: false"
        ) from error
    finally:
        model.train(was_training)
    return [link for link in found[0] if link in found[1]]


def resize_like(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Resizes each layer to the shapes of the weights, in place; does not read their values.

    Args:
        model: the model, with the layers of the recipe.
        weights: weights by name, as in a checkpoint.
    """
    for name, layer in model.named_modules():
        prefix = f"{name}." if name else ""
        for own in (layer._parameters, layer._buffers):
            for key, old in own.items():
                new = weights.get(prefix + key)
                if old is not None and new is not None and old.shape != new.shape:
                    _replace(layer, key, torch.zeros_like(new))


def _links(model: nn.Module, graph: fx.Graph) -> list[Link]:
    layers = dict(model.named_modules())
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    # Weights that are read outside the call of their layer, or by two layers, stay as they are.
    read = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    owners = [id(p) for _, p in model.named_parameters(remove_duplicate=False)]
    free = {
        name
        for name in calls
        if calls.count(name) == 1
        and not any(target.startswith(f"{name}.") for target in read)
        and all(owners.count(id(p)) == 1 for p in layers[name].parameters())
    }
    found = []
    for node in graph.nodes:
        if node.op == "call_module" and node.target in free and _ungrouped(layers[node.target]):
            link = _follow(node, layers, free)
            found += [] if link is None else [link]
    return found


def _follow(start: fx.Node, layers: Mapping[str, nn.Module], free: set[str]) -> Link | None:
    """Finds the only reader of a layer, if no operation between the two mixes channels."""
    writer, norms, flat = layers[str(start.target)], [], False
    convolves, node = isinstance(writer, CONVOLUTIONS), start
    while len(node.users) == 1:
        node = next(iter(node.users))
        if node.op == "call_function" and node.target in FUNCTIONS:
            continue
        layer = layers.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, ELEMENTWISE) or (convolves and isinstance(layer, POOLING)):
            continue
        if convolves and isinstance(layer, nn.Flatten):
            if (layer.start_dim, layer.end_dim) != (1, -1):
                return None
            flat = True
        elif isinstance(layer, NORMS) and node.target in free and not flat:
            norms.append(str(node.target))
        else:
            reads = (
                isinstance(layer, nn.Linear)
                if flat or not convolves
                else (isinstance(layer, CONVOLUTIONS))
            )
            if not reads or node.target not in free or not _ungrouped(layer):
                return None
            return Link(writer=str(start.target), norms=tuple(norms), reader=str(node.target))
    return None


def _ungrouped(layer: nn.Module | None) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, CONVOLUTIONS) and layer.groups == 1)


def _columns(reader: nn.Module, kept: Tensor, channels: int) -> Tensor:
    """Returns the reader's inputs for the kept channels: several each after a flattening."""
    assert isinstance(reader.weight, Tensor), "a reader has weights"
    each = reader.weight.shape[1] // channels
    return (kept[:, None] * each + torch.arange(each)).flatten()


def _silence(reader: nn.Module, kept: Tensor, channels: int) -> None:
    """Makes the reader ignore all other channels."""
    weight = reader.weight
    assert isinstance(weight, Tensor), "a reader has weights"
    read = torch.zeros(weight.shape[1], dtype=torch.bool)
    read[_columns(reader, kept, channels)] = True
    with torch.no_grad():
        weight[:, ~read] = 0


def _cut(model: nn.Module, link: Link, kept: Tensor, channels: int) -> None:
    for name in (link.writer, *link.norms):
        layer = model.get_submodule(name)
        for key, value in (*layer.named_parameters(), *layer.named_buffers()):
            if value.ndim:  # a norm counts its batches in a single number
                _replace(layer, key, value.detach()[kept])
    reader = model.get_submodule(link.reader)
    assert isinstance(reader.weight, Tensor), "a reader has weights"
    _replace(reader, "weight", reader.weight.detach()[:, _columns(reader, kept, channels)])


def _replace(layer: nn.Module, key: str, value: Tensor) -> None:
    """Replaces a tensor of a layer, and updates the layer's sizes."""
    old = getattr(layer, key)
    if isinstance(old, nn.Parameter):
        setattr(layer, key, nn.Parameter(value.clone(), requires_grad=old.requires_grad))
    else:
        layer.register_buffer(key, value.clone())
    if isinstance(layer, NORMS):
        layer.num_features = len(value)
    elif isinstance(layer, nn.Linear) and key == "weight":
        layer.out_features, layer.in_features = value.shape
    elif isinstance(layer, CONVOLUTIONS) and key == "weight":
        layer.out_channels, layer.in_channels = value.shape[0], value.shape[1] * layer.groups


def _check_equal(right: nn.Module, found: nn.Module, example: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        expected, outputs = first_output(right(*example)), first_output(found(*example))
    gap = (expected - outputs).abs().max().item()
    if not gap <= LARGEST_GAP * max(1.0, expected.abs().max().item()):
        raise RecipeError(
            f"prune.structured: without the channels the model's outputs differ by {gap:.3g} from "
            "those of one that ignores them; narrow prune.layers, or take structured: false"
        )
