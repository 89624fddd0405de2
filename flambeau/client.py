"""Calls models on a server that speaks the Open Inference Protocol v2 over gRPC.

In: NumPy arrays by input name. Out: NumPy arrays by output name.

    with Client("models.internal:8001") as client:
        digits = client.model("digits")
        logits = digits(image=images)

`AsyncClient` is the same client with `await` before every call. Requests and response parsing are
in `wire.py`, shared by both; each client adds only the transport.

Rules:
- every call has a deadline, retries included;
- a server that is starting or draining is tried again, and an overloaded one when it says to;
- every failed call raises a `flambeau.errors.ClientError`.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Unpack

from flambeau.calling.connection import AsyncServiceConnection, ServiceConnection
from flambeau.channel import MESSAGES, SERVICE
from flambeau.errors import DeadlineError, UnavailableError
from flambeau.metadata import ModelMetadata
from flambeau.model import AsyncModel, Model
from flambeau.wire import (
    Array,
    InferOptions,
    infer_call,
    live_call,
    metadata_call,
    ready_call,
    stream_call,
)


class Client(ServiceConnection):
    """A connection to a server; threads may share it.

    Args:
        target: `host:port`. The connection opens at the first call.
        timeout_s: default timeout of a call in seconds, retries included.
        retries: most retries of a call. No server accepted it (gRPC makes 4 such retries at most),
            or an overloaded server refused to start it and said when to retry; 0 for none.
        max_message_bytes: limit of one message, in either direction.
        tls: TLS settings; None for plain text.
        token: an API key, or a token of the identity provider; empty if none is needed.

    Raises:
        AddressError: the target is a URL, or has no port.
        ValueError: an invalid limit or number of retries, a certificate without its key or the
            reverse, or a token that a header cannot contain.
        OSError: a file of `tls` cannot be read.
    """

    service = SERVICE
    messages = MESSAGES

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
        request_id: str = "",
        artifact: str = "",
        accuracy: str = "",
        bf16: Collection[str] = (),
    ) -> dict[str, Array]:
        """Runs a model on a batch. The signature is not used here; `Client.model` looks it up.

        Args:
            model: name of the model.
            inputs: arrays by input name; the first dimension is the batch. BYTES are arrays of
                objects (bytes, or text sent as UTF-8).
            version: version number; empty for the one the server's pointer names.
            outputs: names of the requested outputs; none for all.
            timeout_s: timeout of this call in seconds, instead of the client's.
            request_id: id that appears in the server's logs and in the response.
            artifact: name of the artifact that must answer, such as `onnx-int8`; empty for any.
            accuracy: `exact`, `balanced` or `fast`: the fastest artifact that qualifies answers;
                empty for the server's default artifact.
            bf16: names of the bfloat16 inputs, given as bit patterns in uint16 arrays.

        Returns:
            Arrays by output name: BYTES as objects of type bytes, BF16 as uint16 bit patterns.

        Raises:
            InvalidRequestError: the inputs cannot be sent, or the server rejects them.
            ClientError: any other error of the tree in `flambeau.errors`.
        """
        call = infer_call(
            model,
            inputs,
            version=version,
            outputs=outputs,
            request_id=request_id,
            artifact=artifact,
            accuracy=accuracy,
            bf16=bf16,
        )
        return self._answer(call, timeout_s)

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        timeout_s: float | None = None,
        **options: Unpack[InferOptions],
    ) -> Iterator[dict[str, Array]]:
        """Runs a model that gives any number of answers, such as a Python model that yields.

        Args:
            model: name of the model.
            inputs: as for `infer`.
            timeout_s: timeout of the whole call in seconds, instead of the client's.
            options: as for `infer`.

        Yields:
            The arrays of each answer, as it comes. A reader that is slow slows the model; one that
            stops, as by `break`, ends the model's work on this request.

        Raises:
            ClientError: as `infer`, perhaps behind some answers. Only a call without an answer is
                tried again.
        """
        return self._answers(stream_call(model, inputs, **options), timeout_s)

    def is_live(self) -> bool:
        """Returns True if the server process is up; False if there is no response."""
        with suppress(UnavailableError, DeadlineError):
            return self._answer(live_call())
        return False

    def is_ready(self, model: str | None = None, version: str = "") -> bool:
        """Returns True if the server, or one model, accepts requests; False without a response."""
        with suppress(UnavailableError, DeadlineError):
            return self._answer(ready_call(model, version))
        return False

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Returns the server's metadata of a model.

        Raises:
            NotFoundError: the server does not serve it.
            ClientError: any other failure.
        """
        return self._answer(metadata_call(model, version))

    def model(self, name: str, version: str = "") -> Model:
        """Returns a model that is called like a function, and checks requests by its signature.

        Raises:
            NotFoundError: the server does not serve it.
            ServerError: its metadata is not a valid signature.
            ClientError: any other failure.
        """
        return Model(self, name, version, self.metadata(name, version).signature())


class AsyncClient(AsyncServiceConnection):
    """Asyncio version of `Client`: create and use it inside one running event loop."""

    service = SERVICE
    messages = MESSAGES

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        timeout_s: float | None = None,
        **options: Unpack[InferOptions],
    ) -> dict[str, Array]:
        """Same as `Client.infer`; cancelling the task cancels the call on the server."""
        call = infer_call(model, inputs, **options)
        return await self._answer(call, timeout_s)

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        timeout_s: float | None = None,
        **options: Unpack[InferOptions],
    ) -> AsyncIterator[dict[str, Array]]:
        """Same as `Client.stream`, as an async iterator."""
        return self._answers(stream_call(model, inputs, **options), timeout_s)

    async def is_live(self) -> bool:
        """Same as `Client.is_live`."""
        with suppress(UnavailableError, DeadlineError):
            return await self._answer(live_call())
        return False

    async def is_ready(self, model: str | None = None, version: str = "") -> bool:
        """Same as `Client.is_ready`."""
        with suppress(UnavailableError, DeadlineError):
            return await self._answer(ready_call(model, version))
        return False

    async def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Same as `Client.metadata`."""
        return await self._answer(metadata_call(model, version))

    async def model(self, name: str, version: str = "") -> AsyncModel:
        """Same as `Client.model`."""
        return AsyncModel(self, name, version, (await self.metadata(name, version)).signature())
