"""Calls models on a server that speaks the Open Inference Protocol v2 over gRPC.

In: NumPy arrays by input name. Out: NumPy arrays by output name.

    with Client("models.internal:8001") as client:
        digits = client.model("digits")
        logits = digits(image=images)

`AsyncClient` is the same client with `await` before every call. What a call sends and how its
answer is read stands in `wire.py`, once for both; each client adds only the sending.

Rules kept here:
- every call has a deadline;
- every failure of a call is a `flambeau.errors.ClientError`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from flambeau.channel import (
    MAX_MESSAGE_BYTES,
    Tls,
    bind_methods,
    channel_options,
    check_timeout_s,
    failing,
    open_async_channel,
    open_channel,
)
from flambeau.errors import DeadlineError, UnavailableError
from flambeau.metadata import ModelMetadata
from flambeau.model import AsyncModel, Model
from flambeau.wire import Answer, Array, Call, infer_call, live_call, metadata_call, ready_call


class Client:
    """A connection to a server; threads may share it.

    Args:
        target: `host:port`. Connects at the first call.
        timeout_s: seconds that a call may take, retries included, unless it names its own.
        max_message_bytes: limit on one message, in either direction.
        tls: how to speak TLS; None speaks without.
        token: an API key, or a token of the identity provider; empty where none is needed.

    Raises:
        AddressError: the target is a URL, or has no port.
        ValueError: a limit that cannot be kept, half a pair of certificate and key, or a token
            that no header can carry.
        OSError: a file of `tls` cannot be read.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 30.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: Tls | None = None,
        token: str = "",
    ) -> None:
        self._timeout_s = check_timeout_s(timeout_s)
        self._channel = open_channel(target, channel_options(max_message_bytes), tls)
        self._methods = bind_methods(self._channel, token=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; calls under way are cancelled."""
        self._channel.close()

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
        request_id: str = "",
        bf16: Collection[str] = (),
    ) -> dict[str, Array]:
        """Runs a model on a batch. Checks no signature: `Client.model` does.

        Args:
            model: its name.
            inputs: arrays by input name; the first dimension is the batch. BYTES are arrays of
                objects (bytes, or text sent as UTF-8).
            version: empty for the one the server's pointer names.
            outputs: names of the outputs wanted; none for all.
            timeout_s: seconds for this call, instead of the client's.
            request_id: appears in the server's logs and is echoed.
            bf16: names of the inputs that are bfloat16, given as bit patterns in uint16 arrays.

        Returns:
            Arrays by output name: BYTES as objects of type bytes, BF16 as uint16 bit patterns.

        Raises:
            InvalidRequestError: the inputs cannot be sent, or the server does not take them.
            ClientError: any other leaf of the tree in `flambeau.errors`.
        """
        call = infer_call(
            model, inputs, version=version, outputs=outputs, request_id=request_id, bf16=bf16
        )
        return self._answer(call, timeout_s)

    def is_live(self) -> bool:
        """Whether the server's process is up; False if nothing answers."""
        with suppress(UnavailableError, DeadlineError):
            return self._answer(live_call())
        return False

    def is_ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the server, or one model, takes requests; False if nothing answers."""
        with suppress(UnavailableError, DeadlineError):
            return self._answer(ready_call(model, version))
        return False

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """What the server says about a model.

        Raises:
            NotFoundError: the server does not serve it.
            ClientError: any other failure.
        """
        return self._answer(metadata_call(model, version))

    def model(self, name: str, version: str = "") -> Model:
        """A model to be called like a function, checked against its signature.

        Raises:
            NotFoundError: the server does not serve it.
            ServerError: its metadata is no signature.
            ClientError: any other failure.
        """
        return Model(self, name, version, self.metadata(name, version).signature())

    def _answer(self, call: Call[Answer], timeout_s: float | None = None) -> Answer:
        with _bounded(self._timeout_s if timeout_s is None else timeout_s) as deadline_s:
            reply = self._methods[call.method](call.request, timeout=deadline_s)
        return call.read(reply)


class AsyncClient:
    """As `Client`, awaited: make it and use it inside one running event loop."""

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 30.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: Tls | None = None,
        token: str = "",
    ) -> None:
        self._timeout_s = check_timeout_s(timeout_s)
        self._channel = open_async_channel(target, channel_options(max_message_bytes), tls)
        self._methods = bind_methods(self._channel, token=token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Client.close`."""
        await self._channel.close(grace=None)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
        request_id: str = "",
        bf16: Collection[str] = (),
    ) -> dict[str, Array]:
        """As `Client.infer`; cancelling the task cancels the call on the server."""
        call = infer_call(
            model, inputs, version=version, outputs=outputs, request_id=request_id, bf16=bf16
        )
        return await self._answer(call, timeout_s)

    async def is_live(self) -> bool:
        """As `Client.is_live`."""
        with suppress(UnavailableError, DeadlineError):
            return await self._answer(live_call())
        return False

    async def is_ready(self, model: str | None = None, version: str = "") -> bool:
        """As `Client.is_ready`."""
        with suppress(UnavailableError, DeadlineError):
            return await self._answer(ready_call(model, version))
        return False

    async def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """As `Client.metadata`."""
        return await self._answer(metadata_call(model, version))

    async def model(self, name: str, version: str = "") -> AsyncModel:
        """As `Client.model`."""
        return AsyncModel(self, name, version, (await self.metadata(name, version)).signature())

    async def _answer(self, call: Call[Answer], timeout_s: float | None = None) -> Answer:
        with _bounded(self._timeout_s if timeout_s is None else timeout_s) as deadline_s:
            reply = await self._methods[call.method](call.request, timeout=deadline_s)
        return call.read(reply)


@contextmanager
def _bounded(timeout_s: float) -> Iterator[float]:
    """Gives a call its deadline in seconds, and its failure the error of our tree."""
    deadline_s = check_timeout_s(timeout_s)
    with failing(deadline_s):
        yield deadline_s
