"""Observes training: gradients, activations, the source of non-finite numbers, and time.

In: a model and the recipe's debug options. Out: figures for trackers, a trace, or messages.

Rule: observation changes nothing, so an observed run ends with the same bits.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.network.model_names import matching_any, named_layers, named_parameters
from training.recipe.parts.debug_parts import DebugPart, ProfilePart

MADE_CHARACTERS = 120
"""Characters of a layer's `repr` in a message."""


class Watch:
    """Records gradients of parameters and outputs of layers, step by step.

    Args:
        parameters: parameters whose gradients are recorded, by name.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._sizes: dict[str, list[float]] = collections.defaultdict(list)
        self._last: dict[str, Tensor] = {}

    def after_step(self) -> None:
        """Records the gradients of a step, as they were in the optimizer step."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                found = parameter.grad.to_dense()
                self._keep(f"gradients/{name}", found, found.norm())

    def saw_output(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """Records a layer's output, as a forward hook; evaluation is not recorded."""
        found = _first_tensor(output)
        if torch.is_grad_enabled() and found is not None and found.is_floating_point():
            size = found.detach().float().square().mean().sqrt()
            self._keep(f"activations/{name}", found, size)

    def saw_output_to_come_back(
        self, name: str, module: nn.Module, inputs: Any, output: Any
    ) -> None:
        """Registers a hook for the gradient of this output; is itself a forward hook."""
        found = _first_tensor(output)
        if found is not None and found.requires_grad:
            # On the tensor, not on the layer: torch's layer hooks forbid in-place operations.
            found.register_hook(partial(self._saw_gradient, f"backward/{name}"))  # type: ignore[no-untyped-call]

    def _saw_gradient(self, name: str, gradient: Tensor) -> None:
        self._keep(name, gradient, gradient.float().square().mean().sqrt())

    def metrics(self) -> dict[str, float]:
        """Returns means since the last call: norms of gradients, root mean squares otherwise."""
        means = {name: sum(sizes) / len(sizes) for name, sizes in self._sizes.items()}
        self._sizes.clear()
        return means

    def state(self) -> dict[str, list[float]]:
        """Returns the values for a checkpoint in mid-epoch."""
        return dict(self._sizes)

    def restore(self, saved: Mapping[str, list[float]]) -> None:
        """Restores the values of a `state`."""
        self._sizes.update(saved)

    def histograms(self) -> dict[str, Tensor]:
        """Returns the finite numbers of the last step."""
        finite = {name: values[values.isfinite()] for name, values in self._last.items()}
        return {name: values for name, values in finite.items() if values.numel()}

    def _keep(self, name: str, values: Tensor, size: Tensor) -> None:
        self._sizes[name].append(size.item())
        self._last[name] = values.detach().float().flatten().clone()


@contextlib.contextmanager
def watched(model: nn.Module, part: DebugPart) -> Iterator[Watch]:
    """Observes the model as the recipe says, within the block.

    Raises:
        RecipeError: a pattern matches nothing.
    """
    parameters, layers = named_parameters(model), named_layers(model)
    chosen = matching_any(part.gradients, parameters, "debug.gradients")
    watch = Watch({name: parameters[name] for name in chosen})
    with contextlib.ExitStack() as stack:
        for key, look in (
            ("activations", watch.saw_output),
            ("backward", watch.saw_output_to_come_back),
        ):
            for name in matching_any(getattr(part, key), layers, f"debug.{key}"):
                hook = layers[name].register_forward_hook(partial(look, name))
                stack.callback(hook.remove)
        if part.anomaly:
            stack.enter_context(torch.autograd.set_detect_anomaly(True))
        yield watch


def first_not_finite(model: nn.Module, run: Callable[[], object], inputs: Sequence[Tensor]) -> str:
    """Returns a message that names the place of the first non-finite number.

    Args:
        model: the model that produced it.
        run: runs the model on the inputs once more.
        inputs: arguments of the model.
    """
    for place, tensor in enumerate(inputs):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            return f"input {place} of the model is not finite"
    found: list[str] = []

    def look(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        tensor = _first_tensor(output)
        if tensor is not None and tensor.is_floating_point() and not tensor.isfinite().all():
            found.append(name)

    with contextlib.ExitStack() as stack, torch.no_grad():
        for name, layer in named_layers(model).items():
            stack.callback(layer.register_forward_hook(partial(look, name)).remove)
        run()
    if found:
        return f"the first output that is not finite is that of '{found[0]}'"
    return "all outputs of its layers are finite"


def failing_layer(model: nn.Module, run: Callable[[], object]) -> str:
    """Returns a message with the innermost layer in which a run fails, and that layer's inputs.

    Args:
        model: the model that failed.
        run: runs the model on the same inputs once more.

    Returns:
        ` in layer 'head' (Linear(in_features=4, ...)), which was given [2, 3]`; an empty string
        if the run fails in no layer, or does not fail again.
    """
    entered: list[tuple[str, nn.Module, Any]] = []

    def enter(name: str, module: nn.Module, inputs: Any) -> None:
        entered.append((name, module, inputs))

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        entered.pop()

    try:
        with contextlib.ExitStack() as stack, torch.no_grad():
            for name, layer in named_layers(model).items():
                stack.callback(layer.register_forward_pre_hook(partial(enter, name)).remove)
                stack.callback(layer.register_forward_hook(leave).remove)
            run()
    except Exception:  # already reported
        return f" in layer {_layer_in_words(*entered[-1])}" if entered else ""
    return ""


def _layer_in_words(name: str, layer: nn.Module, inputs: Any) -> str:
    """Describes a layer, its constructor arguments, and the shapes of its inputs."""
    made = repr(layer) if not any(layer.children()) else type(layer).__name__
    shapes = ", ".join(
        str(list(one.shape)) if isinstance(one, Tensor) else type(one).__name__ for one in inputs
    )
    return f"'{name}' ({made[:MADE_CHARACTERS]}), which was given {shapes or 'nothing'}"


@contextlib.contextmanager
def profiled(part: ProfilePart | None, path: Path) -> Iterator[Callable[[], None]]:
    """Yields a function to call after every step; writes the trace of some steps to a file.

    Args:
        part: the recipe's profile; None for no profile.
        path: the trace file, in Chrome's format: `chrome://tracing` and Perfetto show it.
    """
    if part is None:
        yield lambda: None
        return

    def write(profiler: torch.profiler.profile) -> None:
        temporary = path.with_name(f"{path.name}.tmp")
        profiler.export_chrome_trace(str(temporary))
        temporary.replace(path)

    # The profiler's own first step is slow, and is left out.
    steps = torch.profiler.schedule(wait=part.wait, warmup=1, active=part.active, repeat=1)
    with torch.profiler.profile(schedule=steps, on_trace_ready=write) as profiler:
        yield profiler.step


def _first_tensor(output: Any) -> Tensor | None:
    """Returns the output itself, or the first of several."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None
