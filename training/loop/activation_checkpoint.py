"""Saves memory in training: chosen layers compute their activations twice and keep none.

In: a model and patterns of layer names. The layers' results stay the same, bit for bit: random
numbers are drawn again as before, and buffers such as the statistics of norms are updated once.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from training.network.model_names import matching_any, named_layers


@contextlib.contextmanager
def activations_recomputed(model: nn.Module, patterns: Sequence[str]) -> Iterator[None]:
    """Lets layers that match a pattern recompute their activations in backward, within the block.

    Raises:
        RecipeError: a pattern matches no layer.
    """
    layers = named_layers(model)
    names = matching_any(patterns, layers, "train.activation_checkpoint")
    # A chosen layer's own layers are recomputed with it.
    outermost = [n for n in names if not any(n.startswith(f"{other}.") for other in names)]
    chosen = [layers[name] for name in outermost]
    before = [layer.__dict__.get("forward") for layer in chosen]  # rarely any: classes have it
    try:
        for layer in chosen:
            layer.forward = partial(_recomputed, layer, layer.forward)
        yield
    finally:
        for layer, own in zip(chosen, before, strict=True):
            layer.__dict__.pop("forward", None)
            if own is not None:
                layer.forward = own


def _recomputed(layer: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if torch.compiler.is_compiling():  # a compiler updates buffers once by itself
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    contexts = partial(_contexts, layer)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(layer: nn.Module) -> tuple[Any, Any]:
    """Returns the contexts of the first forward pass and of the recomputation."""
    return contextlib.nullcontext(), _buffers_kept(layer)


@contextlib.contextmanager
def _buffers_kept(layer: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, kept in before:
                buffer.copy_(kept)
