"""Names the outputs of a network that returns a tensor, tuple, dictionary or dataclass.

In: the result of a network or function. Out: its tensors by name, in order.

Rules:
- a single tensor is `output`; the items of a tuple or list are `output_0`, `output_1`, ...;
- items of dictionaries, named tuples and dataclasses have the names of their keys or fields, in
  the order of the structure; those that are None are left out;
- a structure within another adds its name and a dot: `hidden_states.0`;
- given names replace the names of a tensor and of a tuple's items, in order, and select outputs
  from a dictionary or dataclass, which other outputs do not leave.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from flambeau.protocol.strict import nearest_name

MAX_OUTPUTS = 256
"""Outputs of a network; more are the sign of a result that is no output, such as a cache."""
MAX_DEPTH = 8
"""Structures within structures."""
MAX_NAME = 256
"""Characters of an output's name, as in `TensorSpec`."""

RETURNS = "return a tensor, or a tuple, dictionary or dataclass of tensors"


class OutputError(ValueError):
    """A network's result is not tensors, or does not have the given names."""


def named_outputs(found: object, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Returns the tensors of a network's result by name, in order.

    Args:
        found: a tensor, or a tuple, list, named tuple, mapping or dataclass of tensors or of
            further structures.
        names: the outputs' names. For a tensor, tuple or list: one for each, in order. For a
            mapping or dataclass: keys or fields, all or some of them.

    Raises:
        OutputError: a value is no tensor, a name occurs twice or is unknown, there is no output,
            there are more than `MAX_OUTPUTS`, or the number of names differs.
    """
    outputs: dict[str, Tensor] = {}
    for name, tensor in _tensors(_selected(found, names), "", 0):
        if name in outputs:
            raise OutputError(f"two outputs of the network have the name '{name}'; rename one")
        if len(name) > MAX_NAME:
            raise OutputError(
                f"the network names an output '{name[:40]}...', {len(name):,} characters; "
                f"give up to {MAX_NAME}"
            )
        outputs[name] = tensor
        if len(outputs) > MAX_OUTPUTS:
            raise OutputError(f"the network returns more than {MAX_OUTPUTS} tensors; return fewer")
    if not outputs:
        raise OutputError(f"the network returns no tensor ({type(found).__name__}); {RETURNS}")
    return outputs if names is None else _with_names(found, outputs, names)


class OutputsInOrder(nn.Module):
    """A network or function whose result becomes a tuple of tensors in the order of its names.

    Exporters and tracers take it where they do not take dictionaries or dataclasses.

    Args:
        network: called with the inputs in order.
        names: names of the outputs; see `named_outputs`.
    """

    def __init__(self, network: Callable[..., Any], names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.network = network
        self.names = names and tuple(names)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs in order."""
        return tuple(named_outputs(self.network(*inputs), self.names).values())


def _selected(found: object, names: Sequence[str] | None) -> object:
    """Returns only the items that names select; others, such as a cache, may be no tensors."""
    if names is None or isinstance(found, Tensor | tuple | list):
        return found
    items = _items(found, "")
    if items is None:
        return found
    heads = {name.split(".")[0] for name in names} | set(names)
    known = dict(items)
    return {key: item for key, item in known.items() if key in heads} or known


def _with_names(
    found: object, outputs: dict[str, Tensor], names: Sequence[str]
) -> dict[str, Tensor]:
    if len(set(names)) != len(names):
        raise OutputError(f"an output's name occurs twice in {list(names)}")
    if not _has_own_names(found) or (isinstance(found, tuple) and not set(names) <= set(outputs)):
        if len(names) != len(outputs):
            raise OutputError(
                f"the network returns {len(outputs)} outputs, and {len(names)} names are given, "
                f"{list(names)}; name each of them, in order"
            )
        return dict(zip(names, outputs.values(), strict=True))
    for name in names:
        if name not in outputs:
            raise OutputError(
                f"the network does not return an output '{name}'{nearest_name(name, outputs)}"
            )
    return {name: outputs[name] for name in names}


def _tensors(found: object, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a result, depth first."""
    if isinstance(found, Tensor):
        yield name or "output", found
        return
    items = _items(found, name)
    if items is None:
        place = f" as output '{name}'" if name else ""
        what = "None" if found is None else f"a {type(found).__name__}"
        raise OutputError(f"the network returns {what}{place}; {RETURNS}")
    if depth >= MAX_DEPTH:
        raise OutputError(
            f"the network's output '{name[:80]}' lies in more than {MAX_DEPTH} structures; "
            f"{RETURNS}"
        )
    for key, item in items:
        yield from _tensors(item, f"{name}.{key}" if name else key, depth + 1)


def _items(found: object, name: str) -> Iterator[tuple[str, object]] | None:
    """Returns the named items of a structure; None for a value that is none."""
    if isinstance(found, Mapping):
        for key in found:
            if not isinstance(key, str) or not key:
                raise OutputError(
                    f"the network returns a dictionary with the key {str(key)[:40]!r} "
                    f"({type(key).__name__}); name outputs by text"
                )
        return ((key, item) for key, item in found.items() if item is not None)
    if is_dataclass(found) and not isinstance(found, type):
        pairs = ((field.name, getattr(found, field.name)) for field in fields(found))
        return ((key, item) for key, item in pairs if item is not None)
    if isinstance(found, tuple | list):
        own = getattr(found, "_fields", None)
        if own is not None:
            return ((key, item) for key, item in zip(own, found, strict=True) if item is not None)
        prefix = "" if name else "output_"
        return ((f"{prefix}{place}", item) for place, item in enumerate(found))
    return None


def _has_own_names(found: object) -> bool:
    """Returns True for a structure whose items have names."""
    return isinstance(found, Mapping) or is_dataclass(found) or hasattr(found, "_fields")
