"""An inference over HTTP/1, whatever its protocol: from the end of its body to its cancellation.

In: an exchange with its whole body. Out: an `Inference`, begun in its turn of the event loop. A
protocol adds how it opens one, decodes its body and writes its replies.
"""

import time
from typing import TYPE_CHECKING, ClassVar

from services.errors import ServingError
from services.gateway.inference import Inference, InferencePath
from services.wire.body import Body
from services.wire.http1.exchange import Exchange, ExchangeConnection
from services.wire.http1.head import Head

if TYPE_CHECKING:
    from services.access.authenticator import CachedAuthorization


class HttpInference(Exchange):
    """One inference; its subclasses implement the rest of `ReplySink`.

    Args:
        path: what the inferences of the protocol share.
        connection: connection of the request.
        head: its head.
    """

    __slots__ = ("_inference", "_path")
    counts_refusals = True
    is_paced = True
    closed_code: ClassVar[str] = "499"
    """Code in the accounting of a caller that disconnected; nginx's status."""

    def __init__(self, path: InferencePath, connection: ExchangeConnection, head: Head) -> None:
        Exchange.__init__(self, connection, head)
        self._path = path
        self._inference: Inference | None = None

    @property
    def is_over(self) -> bool:
        """True once it is answered, or its caller has disconnected."""
        return self.response is not None

    @property
    def authorization(self) -> "CachedAuthorization | None":
        """Authorization of the caller; None where nobody needs a credential.

        A protocol says so itself: one that forgot would serve every model to every key.
        """
        raise NotImplementedError

    def opened(self, received_at: float) -> Inference:
        """Returns the protocol's record of this inference.

        Args:
            received_at: `time.monotonic()` second of its last byte.
        """
        raise NotImplementedError

    def begin(self, body: Body) -> None:
        """Queues the work for its turn of the event loop."""
        self._path.admission.turns.begin(self, body, self._connection)

    def begin_in_turn(self, body: Body, received_at: float) -> None:
        """Starts the inference."""
        inference = self._inference = self.opened(received_at)
        inference.begin(body, self.authorization)

    def refuse(self, error: ServingError) -> None:
        """Counts a request that was not decoded under the model that it names."""
        self._open().fail(error)

    def abandon(self) -> None:
        """Cancels the inference: its caller has disconnected."""
        Exchange.abandon(self)
        inference = self._inference or self._open()
        inference.cancel(self.closed_code, ServingError("the caller has disconnected"))

    def _open(self) -> Inference:
        inference = self._inference = self.opened(time.monotonic())
        return inference

    def key(self, source: str, name: str) -> str:
        """Returns the value of a header; see `ReplySink`."""
        return (self.head.text(name) or "") if source == "header" else ""
