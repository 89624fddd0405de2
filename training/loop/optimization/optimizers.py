"""Makes the optimizer of a recipe: its parameters, and the learning rate of each.

In: a model and the recipe's `optim`. Out: a torch optimizer, each of whose groups has a
`lr_scale` beside torch's own keys: its factor on the learning rate of the schedule.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from training.errors import RecipeError
from training.loop.optimization.joined_optimizer import JoinedOptimizer
from training.network.model_names import matching, named_parameters
from training.recipe.parts.optimizer_parts import OptimPart

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
"""Layers whose parameters the keyword `norm` in `no_decay` selects."""
KEYWORDS = ("bias", "norm")
"""Keywords of `no_decay`, which are not patterns."""


def build_optimizer(model: nn.Module, optim: OptimPart) -> torch.optim.Optimizer:
    """Returns the optimizer of all parameters that are not frozen.

    Args:
        model: the model to train.
        optim: the recipe's part.

    Raises:
        RecipeError: a pattern matches no parameter, nothing is left to train, or the optimizer
            does not support a parameter and there is no `rest` for it.
    """
    trained = {n: p for n, p in named_parameters(model).items() if p.requires_grad}
    if not trained:
        raise RecipeError("no parameter of the model is left to train; narrow model.freeze")
    settings = optim.chosen.model_dump()
    if optim.lbfgs is not None:
        settings["line_search_fn"] = settings.pop("line_search")
        lbfgs = torch.optim.LBFGS(trained.values(), **settings)
        lbfgs.param_groups[0]["lr_scale"] = 1.0
        return lbfgs
    taken = _taken(model, trained, optim)
    left = [name for name in trained if name not in taken]
    if not left:
        return _made(optim, parameter_groups(model, optim))
    assert optim.rest is not None, "else they were refused"
    rest = optim.model_copy(update={optim.choice: None, "adamw": optim.rest})
    others = parameter_groups(model, rest, left)
    for group in others:  # the schedule's rate is that of the chosen optimizer
        group["lr_scale"] *= optim.rest.lr / optim.chosen.lr
    return JoinedOptimizer(_made(optim, parameter_groups(model, optim, taken)), _made(rest, others))


def _made(optim: OptimPart, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    settings = optim.chosen.model_dump(exclude={"weight_decay"})
    make = getattr(torch.optim, type(optim.chosen).__name__)
    optimizer: torch.optim.Optimizer = make(groups, **settings)
    return optimizer


def parameter_groups(
    model: nn.Module, optim: OptimPart, names: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Returns groups of parameters with equal settings, in the order of the model.

    Args:
        model: the model to train.
        optim: the recipe's part; not `lbfgs`, which has one group.
        names: names of the parameters; None for all.

    Raises:
        RecipeError: a pattern matches no parameter.
    """
    parameters = named_parameters(model)
    spared = _spared(model, optim, parameters)
    chosen = dict.fromkeys(parameters) | {
        name: group
        for group in reversed(optim.groups)
        for name in matching(group.match, parameters, "optim.groups: match")
    }
    depth_scales = _layer_scales(model, optim.layer_decay)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        if not parameter.requires_grad or (names is not None and name not in names):
            continue
        group = chosen[name]
        scale = depth_scales[name] * (1.0 if group is None else group.lr_scale)
        decay = optim.weight_decay
        if group is not None and group.weight_decay is not None:
            decay = group.weight_decay
        groups.setdefault((scale, 0.0 if name in spared else decay), []).append(parameter)
    return [
        {"params": members, "lr_scale": scale, "weight_decay": decay, "lr": optim.chosen.lr * scale}
        for (scale, decay), members in groups.items()
    ]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the rate of each group: the rate times the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def _spared(model: nn.Module, optim: OptimPart, names: dict[str, nn.Parameter]) -> set[str]:
    """Returns names of parameters without weight decay."""
    in_norms = {
        id(p)
        for layer in model.modules()
        if isinstance(layer, NORMS)
        for p in layer.parameters(recurse=False)
    }
    spared: set[str] = set()
    if "norm" in optim.no_decay:
        spared |= {name for name, p in names.items() if id(p) in in_norms}
    if "bias" in optim.no_decay:
        spared |= {name for name, p in names.items() if p.ndim < 2 and id(p) not in in_norms}
    for pattern in set(optim.no_decay) - set(KEYWORDS):
        spared |= set(matching(pattern, names, "optim.no_decay"))
    return spared


def _layer_scales(model: nn.Module, layer_decay: float | None) -> dict[str, float]:
    """Returns factors by parameter; a layer starts at each matrix or kernel."""
    names = named_parameters(model)
    if layer_decay is None:
        return dict.fromkeys(names, 1.0)
    layers: dict[str, int] = {}
    seen: list[str] = []
    for name, parameter in names.items():
        owner = name.rpartition(".")[0]
        if parameter.ndim >= 2 and owner not in seen:
            seen.append(owner)
        layers[name] = max(len(seen) - 1, 0)
    last = max(layers.values())
    return {name: layer_decay ** (last - layer) for name, layer in layers.items()}


def _taken(
    model: nn.Module, trained: Mapping[str, nn.Parameter], optim: OptimPart
) -> Collection[str]:
    """Returns names of the parameters that the chosen optimizer supports.

    Raises:
        RecipeError: it supports none of them, or not all and there is no `rest`.
    """
    sparse = _sparse_embeddings(model, trained)
    if optim.sparse_adam is not None:
        taken, takes = sparse, "embeddings with sparse=True"
    elif sparse:
        raise RecipeError(
            f"optim.{optim.choice} takes no sparse gradients, which {', '.join(sparse[:5])} has; "
            "take sparse_adam with optim.rest, or make the embedding with sparse=False"
        )
    elif optim.muon is not None:
        taken, takes = [n for n, p in trained.items() if p.ndim == 2], "matrices"
    else:
        return trained
    others = [f"{n} {list(p.shape)}" for n, p in trained.items() if n not in taken]
    if not taken:
        raise RecipeError(
            f"optim.{optim.choice} takes {takes} only, and the model has none that learn; take "
            "adamw"
        )
    if others and optim.rest is None:
        raise RecipeError(
            f"optim.{optim.choice} takes {takes} only, and the model has {', '.join(others[:5])}"
            f"{' and more' if len(others) > 5 else ''}; give optim.rest for them (rest: {{}}), "
            "take adamw, or freeze them"
        )
    return taken


def _sparse_embeddings(model: nn.Module, trained: Mapping[str, nn.Parameter]) -> list[str]:
    """Returns names of parameters that only sparse embeddings read: their gradients are sparse."""
    owners: dict[int, set[bool]] = {}
    for module in model.modules():
        sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(sparse)
    return [name for name, parameter in trained.items() if owners[id(parameter)] == {True}]
