"""Which models of the store a process serves, where callers load and unload them.

In: the acts of callers, and the passes of the reconciler. Out: the names of the models to serve;
the outcome of each act, once a pass that began after it has carried it out.

Source of the modes: Triton's `--model-control-mode`.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from services.errors import ServingError
from services.queueing.model_control.act_limit import check_acts
from services.queueing.records import Lane

ControlMode = Literal["none", "poll", "explicit"]

Settled = Callable[[str], ServingError | bool]
"""Returns why a model cannot be served, or True if it is, or False if that is not decided yet."""


class ModelControl:
    """The models that callers have loaded; on the event loop.

    Args:
        mode: mode of the server; callers may act if it is `explicit`.
        models: models to serve at first.
        parts_of: returns the models that the pipelines of a model run.

    Attributes:
        asked: models to serve, in the order in which they were asked for.
    """

    def __init__(self, mode: ControlMode = "poll", models: tuple[str, ...] = ()) -> None:
        self.mode = mode
        self.asked = dict.fromkeys(models)
        self.parts_of: Callable[[str], list[str]] = lambda _: []
        self._nudged = asyncio.Event()
        self._passes = 0
        self._anew: set[str] = set()
        self._acts: dict[tuple[str, str], tuple[asyncio.Future[None], int]] = {}
        """By act and model: its outcome, and the pass at which it was asked for."""

    @property
    def is_explicit(self) -> bool:
        """True if callers choose the models."""
        return self.mode == "explicit"

    async def act(self, act: str, model: str, dependents: bool = False) -> None:
        """Loads or unloads a model, and waits until that is done.

        Args:
            act: `load` or `unload`.
            model: its name.
            dependents: True to unload the models that its pipeline runs, too.

        Raises:
            ServingError: it cannot be loaded, or too many acts are under way.
        """
        if (act, model) not in self._acts:
            check_acts(len(self._acts))
        await asyncio.shield(self.begin(act, model, dependents))

    def begin(self, act: str, model: str, dependents: bool = False) -> "asyncio.Future[None]":
        """Begins an act; as `act`, without a limit. Returns its outcome."""
        if act == "load":
            self.asked.setdefault(model)
            self._anew.add(model)
        else:
            for name in [model, *(self.parts_of(model) if dependents else ())]:
                self.asked.pop(name, None)
        known = self._acts.get((act, model))
        outcome = known[0] if known else asyncio.get_running_loop().create_future()
        self._acts[act, model] = outcome, self._passes
        self._nudged.set()
        return outcome

    def take_anew(self) -> set[str]:
        """Returns the models that callers have loaded since: what failed before is tried again."""
        anew, self._anew = self._anew, set()
        return anew

    def nudge(self, is_awaited: bool = False) -> None:
        """Has the next pass begin at once, if an act waits for it, or a request."""
        if self._acts or is_awaited:
            self._nudged.set()

    def missed(self, _: Lane, is_known: bool) -> None:
        """Has the next pass begin at once: a request needs a version that made room for others.

        Args:
            is_known: True if another request needed it before.
        """
        if not is_known:
            self._nudged.set()

    def look_in(self, seconds: float) -> None:
        """Has a pass begin in so many seconds, or before."""
        asyncio.get_running_loop().call_later(seconds, self._nudged.set)

    async def pause(self, stop: asyncio.Event, seconds: float) -> None:
        """Waits for the time of the next pass, an act, or the end."""
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._nudged)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def begin_pass(self) -> None:
        """Notes that a pass begins, which sees all acts so far."""
        self._nudged.clear()
        self._passes += 1

    def end_pass(self, settled: Settled) -> None:
        """Ends the acts that a pass has carried out."""
        for (act, model), (outcome, at) in list(self._acts.items()):
            if at >= self._passes:  # the pass had begun before
                continue
            is_wanted = model in self.asked
            found = settled(model) if act == "load" and is_wanted else True
            if found is False:
                continue
            del self._acts[act, model]
            if outcome.done():
                continue
            if isinstance(found, ServingError):
                outcome.set_exception(found)
                outcome.exception()  # its callers may have gone
            else:
                outcome.set_result(None)

    def forget(self, model: str) -> None:
        """Stops serving a model that does not exist."""
        self.asked.pop(model, None)
