"""Reports of callers of the edge processes of one server, which its supervisor keeps.

In: reports of an edge by model, in a file sent over `Control`. Out: those of all edges of a model,
with their ages. Reports of edges that have ended are kept for an hour, too.
"""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from services.low_priority_thread import beside_loop
from services.registry.callers.deployment_callers import (
    MAX_READ_BYTES,
    MAX_REPORTS,
    KeptReport,
    ReportsUnavailableError,
)
from services.registry.callers.recent_callers import WINDOW_S
from services.standalone.control import Control, make_file, read_file

READ_WITHIN_S = 2.0
"""Time for the supervisor to answer."""

_encode = msgspec.msgpack.Encoder().encode
_decode_reports = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_decode_kept = msgspec.msgpack.Decoder(list[KeptReport]).decode


class KeptReports:
    """The reports of all edges, in the supervisor.

    Args:
        clock: seconds, by a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, dict[str, bytes]]] = OrderedDict()
        """Second of the clock and reports by model, of each edge; the newest last."""

    def put(self, process: str, data: bytes) -> None:
        """Replaces the reports of an edge."""
        now = self._clock()
        self._kept[process] = now, _decode_reports(data)
        self._kept.move_to_end(process)
        for name, (at, _) in list(self._kept.items()):
            if at > now - WINDOW_S and len(self._kept) <= MAX_REPORTS:
                break
            del self._kept[name]

    def of(self, model: str) -> bytes:
        """Returns the reports of a model, for `EdgeBoard`."""
        now, found, room = self._clock(), [], MAX_READ_BYTES
        for process, (at, reports) in reversed(self._kept.items()):
            if model in reports and at > now - WINDOW_S and len(reports[model]) <= room:
                found.append(KeptReport(process, now - at, reports[model]))
                room -= len(reports[model])
        return _encode(found)


class EdgeBoard:
    """The board as an edge reaches it, by its supervisor.

    Args:
        control: channel to the supervisor.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._waited: dict[str, asyncio.Future[bytes]] = {}
        """Answers that are waited for, by model."""

    async def put(self, process: str, reports: Mapping[str, bytes]) -> None:
        """Replaces the reports of this edge; see `ReportBoard.put`."""
        try:
            file = await beside_loop(lambda: make_file(_encode(reports)))
        except OSError as error:  # no descriptor is free
            raise ReportsUnavailableError(str(error)) from error
        try:
            self._control.send("report", process, file)
        finally:
            os.close(file)

    async def read(self, model: str) -> Sequence[KeptReport]:
        """Returns the reports of all edges; see `ReportBoard.read`."""
        waited = self._waited.get(model)
        if waited is None:
            waited = self._waited[model] = asyncio.get_running_loop().create_future()
            self._control.send("reports", model)
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                data = await asyncio.shield(waited)
        except TimeoutError:
            self._waited.pop(model, None)
            raise ReportsUnavailableError(
                f"the other processes of this server did not answer within {READ_WITHIN_S:g} s"
            ) from None
        return await beside_loop(lambda: _decode_kept(data))

    def take(self, model: str, file: int) -> None:
        """Takes the answer of the supervisor.

        Args:
            model: the model that was asked for.
            file: descriptor of the reports, which this closes.
        """
        data = read_file(file)
        waited = self._waited.pop(model, None)
        if waited is not None and not waited.done():
            waited.set_result(data)
