"""Two optimizers as one: each updates its own parameters; state and learning rates are shared.

In: optimizers that share no parameter. Out: one optimizer with the groups and the state of both.
"""

from collections.abc import Callable
from typing import Any

import torch


class JoinedOptimizer(torch.optim.Optimizer):
    """Updates the parameters of all its parts.

    Args:
        parts: optimizers that have not made a step yet.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Makes one step of each part, from the current gradients.

        Args:
            closure: computes the loss, and sets the gradients.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state that `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Gives the parts the joint groups and state, which they change in place."""
        start = 0
        for part in self._parts:
            stop = start + len(part.param_groups)
            part.param_groups, start = self.param_groups[start:stop], stop
            part.state = self.state
