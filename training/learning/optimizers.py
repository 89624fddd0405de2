"""Makes the optimizer of a recipe: which parameters it moves, and how fast each.

In: a model and the recipe's `optim`. Out: an optimizer of torch, each of whose groups has a
`lr_scale` beside torch's own keys: its factor on the learning rate of the schedule.
"""

from typing import Any

import torch
from torch import nn

from training.errors import RecipeError
from training.model_names import matching, named_parameters
from training.recipe_parts.optimizer_parts import OptimPart

NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
"""Layers whose parameters `norm` in `no_decay` names."""
KEYWORDS = ("bias", "norm")
"""Words of `no_decay` that are no patterns."""


def build_optimizer(model: nn.Module, optim: OptimPart) -> torch.optim.Optimizer:
    """The optimizer of all parameters that are not frozen.

    Args:
        model: what is trained.
        optim: the recipe's.

    Raises:
        RecipeError: a pattern fits no parameter, nothing is left to train, or the optimizer cannot
            take a parameter of this shape.
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
    if optim.muon is not None:
        _check_matrices(trained)
    settings.pop("weight_decay", None)
    make = getattr(torch.optim, type(optim.chosen).__name__)
    optimizer: torch.optim.Optimizer = make(parameter_groups(model, optim), **settings)
    return optimizer


def parameter_groups(model: nn.Module, optim: OptimPart) -> list[dict[str, Any]]:
    """Groups of parameters that move alike, in the order in which the model has them.

    Args:
        model: what is trained.
        optim: the recipe's; not `lbfgs`, which has one group.

    Raises:
        RecipeError: a pattern fits no parameter.
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
        if not parameter.requires_grad:
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
    """Gives each group its share of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def _spared(model: nn.Module, optim: OptimPart, names: dict[str, nn.Parameter]) -> set[str]:
    """Names of parameters without weight decay."""
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
    """Factors by parameter; a layer begins with each matrix or kernel, and owns what follows it."""
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


def _check_matrices(trained: dict[str, nn.Parameter]) -> None:
    others = [f"{name} {list(p.shape)}" for name, p in trained.items() if p.ndim != 2]
    if others:
        raise RecipeError(
            f"optim.muon takes matrices only, and the model has {', '.join(others[:5])}"
            f"{' and more' if len(others) > 5 else ''}; take adamw, or freeze them"
        )
