"""Reads along what a connection passes on, and hands whole exchanges to the recorder.

Nothing here changes or stops what is passed on: bytes that are not understood end the recording of
their connection only.
"""

import asyncio
from collections import deque
from datetime import UTC, datetime
from functools import partial

from flambeau.replay.capturing.exchange import Exchange
from flambeau.replay.capturing.recorder import (
    LEFT_OUT_BUSY,
    LEFT_OUT_CUT,
    LEFT_OUT_LARGE,
    LEFT_OUT_PATH,
    LEFT_OUT_STATUS,
    LEFT_OUT_UNREAD,
    Recorder,
)
from flambeau.replay.errors import FramingError
from flambeau.replay.http1_messages import Message, MessageParser
from flambeau.replay.records import STATUSES

MAX_PIPELINED = 100
"""Requests of a connection that wait for their answers, while it is understood."""
EXCHANGE_BYTES = 2000
"""Memory of an exchange beside its headers and bodies, about."""


class ConnectionTap:
    """Follows both directions of a connection.

    Args:
        recorder: receives the exchanges.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: deque[Exchange] = deque()
        self._is_off = False
        self._requests = MessageParser(
            answers=False, begin=self._begin_request, done=lambda _: None
        )
        self._answers = MessageParser(
            answers=True,
            begin=self._begin_answer,
            done=self._finish,
            has_no_body=lambda: bool(self._waiting) and self._waiting[0].request.method == "HEAD",
        )

    @property
    def is_idle(self) -> bool:
        """True if no request waits for its answer; False, too, if that is not known."""
        return not self._is_off and not self._waiting and self._requests.is_between

    def take_request(self, data: bytes) -> None:
        """Reads bytes of the client."""
        self._feed(self._requests, data)
        if len(self._waiting) > MAX_PIPELINED:
            self._turn_off()

    def take_answer(self, data: bytes) -> None:
        """Reads bytes of the server."""
        self._feed(self._answers, data)

    def end(self) -> None:
        """Ends with the connection: an answer may end with it, or be cut off."""
        if not self._is_off:
            self._answers.end()
            self._turn_off()

    def _feed(self, parser: MessageParser, data: bytes) -> None:
        if self._is_off:
            return
        try:
            parser.feed(data)
        except FramingError:
            self._recorder.left_out[LEFT_OUT_UNREAD] += 1
            self._turn_off()

    def _turn_off(self) -> None:
        self._is_off = True
        for exchange in self._waiting:
            if exchange.is_recorded:
                self._drop(exchange, LEFT_OUT_CUT)
        self._waiting.clear()

    def _begin_request(self) -> Message:
        exchange = Exchange(
            time=datetime.now(UTC),
            started_s=asyncio.get_running_loop().time(),
            request=Message(keeps=lambda _: False),
            is_recorded=self._recorder.chooses(),
        )
        request = exchange.request
        if exchange.is_recorded:
            request.keeps = partial(self._keeps, exchange, request)
            request.headed = partial(self._keep_head, exchange, request, EXCHANGE_BYTES)
        else:
            request.headed = request.forget_head  # others may follow before its answer
        self._waiting.append(exchange)
        return request

    def _begin_answer(self) -> Message:
        answer = Message(keeps=lambda _: False)
        if self._waiting and self._waiting[0].is_recorded and self._recorder.limits.answers:
            exchange = self._waiting[0]
            exchange.answer = answer
            answer.keeps = partial(self._keeps, exchange, answer)
            answer.headed = partial(self._keep_head, exchange, answer, 0)
        return answer

    def _keep_head(self, exchange: Exchange, message: Message, further: int) -> None:
        """Makes room for a head; without it, the exchange is not recorded."""
        size = message.head_bytes + further
        if exchange.is_recorded and not self._recorder.reserve(exchange, size):
            self._drop(exchange, LEFT_OUT_BUSY)

    def _keeps(self, exchange: Exchange, message: Message, size: int) -> bool:
        """Makes room for a piece of a body; without it, the exchange is not recorded."""
        if not exchange.is_recorded:
            return False
        if len(message.body) + size > self._recorder.limits.max_body_bytes:
            self._drop(exchange, LEFT_OUT_LARGE)
        elif not self._recorder.reserve(exchange, size):
            self._drop(exchange, LEFT_OUT_BUSY)
        return exchange.is_recorded

    def _drop(self, exchange: Exchange, reason: str) -> None:
        self._recorder.drop(exchange, reason)
        exchange.is_recorded = False
        exchange.request.forget_head()
        for message in (exchange.request, exchange.answer):
            if message is not None:
                message.body.clear()

    def _finish(self, answer: Message) -> None:
        """Takes an exchange whose answer is whole."""
        if not self._waiting:  # an answer to no request, as 408 before a close
            return
        exchange = self._waiting.popleft()
        if not exchange.is_recorded:
            return
        exchange.ms = (asyncio.get_running_loop().time() - exchange.started_s) * 1000
        if not exchange.request.target.startswith(b"/"):
            self._drop(exchange, LEFT_OUT_PATH)
        elif exchange.answer is not None and exchange.answer.status not in STATUSES:
            self._drop(exchange, LEFT_OUT_STATUS)
        elif self._waiting or self._requests.is_between:
            self._recorder.take(exchange)
        else:
            self._drop(exchange, LEFT_OUT_CUT)  # answered before it was whole
