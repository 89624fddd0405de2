"""A served model with a known signature.

Values are converted by the signature, and invalid ones fail locally with a clear error. The
signature is that of the time of the lookup.
When a pointer moves to a version with another signature, the server rejects inputs that no longer
fit: look the model up again.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from flambeau.calling.classes import Classified, best_classes
from flambeau.calling.input_values import Inputs, Value, as_arrays, placed
from flambeau.errors import InvalidRequestError
from flambeau.protocol.signature import Signature, SignatureError
from flambeau.protocol.tensors import bf16_numbers
from flambeau.wire import Array, CallOptions, ModelOptions, names, single_or_all, tensor_datatype

if TYPE_CHECKING:
    from flambeau.calling.row_map import RowMap

DEFAULT_IN_FLIGHT = 4
MAX_IN_FLIGHT = 64
DEFAULT_BATCH_SIZE = 256
"""Largest batch of `map` that is not asked for; the server joins requests in flight."""


class _Client(Protocol):
    """Runs inferences, as `Client` does."""

    @property
    def infer(self) -> Callable[..., dict[str, Array]]:
        """Runs a model on a batch."""

    @property
    def stream(self) -> Callable[..., Iterator[dict[str, Array]]]:
        """Runs a model with any number of answers."""


class _AsyncClient(Protocol):
    """Runs inferences, as `AsyncClient` does."""

    @property
    def infer(self) -> Callable[..., Coroutine[Any, Any, dict[str, Array]]]:
        """Runs a model on a batch."""

    @property
    def stream(self) -> Callable[..., AsyncIterator[dict[str, Array]]]:
        """Runs a model with any number of answers."""


class CheckedModel:
    """Converts and checks requests to one model; base of both kinds of model.

    Attributes:
        name: name of the model.
        version: version number; empty for the one the server's pointer names.
        signature: names, datatypes and shapes of inputs and outputs.
    """

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self.name = name
        self.version = version
        self.signature = signature
        self._bf16 = frozenset(spec.name for spec in signature.inputs if spec.datatype == "BF16")

    def arrays(self, inputs: Inputs, outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Returns the arrays of a request that fits the signature, without the server.

        Args:
            inputs: values by input name, or the value of the model's only input. An array is sent
                as it is. Numbers and lists get the input's datatype. BYTES take text (`str`),
                bytes, or the content of a file (`pathlib.Path`). A sample without the batch axis is
                a batch of one.
            outputs: names of the requested outputs; none for all.

        Raises:
            InvalidRequestError: a name, datatype, value, shape or batch size does not fit, or a
                file cannot be read.
        """
        try:
            arrays = as_arrays(self.signature, inputs)
            self.signature.check_inputs(
                {
                    name: (tensor_datatype(name, array, self._bf16), array.shape)
                    for name, array in arrays.items()
                }
            )
            self.signature.check_outputs(tuple(names("outputs", outputs)))
        except (InvalidRequestError, SignatureError) as error:
            raise InvalidRequestError(f"{self._title}: {error}") from error
        return arrays

    @property
    def _title(self) -> str:
        return f"model '{self.name}'" + (f" version {self.version}" if self.version else "")

    def _request(self, inputs: Inputs, options: ModelOptions) -> dict[str, Any]:
        """Returns the arguments of `Client.infer`."""
        arrays = self.arrays(inputs, options.get("outputs", ()))
        target = {"model": self.name, "version": self.version, "bf16": self._bf16}
        return {**target, "inputs": arrays, **options}

    def _classes_output(self, name: str, top: int) -> str:
        """Returns the name of the output that has the classes.

        Raises:
            InvalidRequestError: several outputs may, or its shape is another; `top` is below 1.
        """
        if top < 1:
            raise InvalidRequestError(f"top is {top}; give the number of classes, 1 or more")
        shapes = {spec.name: spec.shape for spec in self.signature.outputs}
        found = [name] if name else list(self.signature.labels) or list(shapes)
        if len(found) > 1:
            raise InvalidRequestError(
                f"{self._title}: {', '.join(found)} may have the classes; give the name of one as "
                "output"
            )
        shape = shapes.get(found[0], (-1, -1))  # the check of the request refuses an unknown name
        if len(shape) != 2:
            raise InvalidRequestError(
                f"{self._title}: output '{found[0]}' has shape {list(shape)}; classify takes an "
                "output of rows and classes"
            )
        return found[0]

    def _classified(
        self, output: str, answer: dict[str, Array], top: int, softmax: bool | None
    ) -> list[list[Classified]]:
        values = answer[output]
        if any(spec.datatype == "BF16" for spec in self.signature.outputs if spec.name == output):
            values = bf16_numbers(values)
        return best_classes(values, self.signature.labels.get(output, ()), top, softmax)

    def _row_map(self, batch_size: int | None, in_flight: int, progress: bool | None) -> "RowMap":
        """Returns the settings of a `map`.

        Raises:
            ValueError: the size of a batch, or the number in flight, is out of range.
            InvalidRequestError: rows cannot be joined, as their batch is not the first axis.
        """
        from flambeau.calling.row_map import RowMap  # threads, which most calls do without

        if not self.signature.is_plain:
            raise InvalidRequestError(
                f"model '{self.name}' has optional inputs, or a tensor whose batch is not its "
                "first axis, so rows cannot be joined; call it once for each request"
            )
        largest = self.signature.max_batch_size
        size = min(largest, DEFAULT_BATCH_SIZE) if batch_size is None else batch_size
        for name, value, limit in (
            ("batch_size", size, largest),
            ("in_flight", in_flight, MAX_IN_FLIGHT),
        ):
            if not 1 <= value <= limit:
                raise ValueError(f"{name} is {value}; give 1 to {limit}")
        return RowMap(
            title=self.name,
            arrays_of=self.arrays,
            batch_size=size,
            in_flight=in_flight,
            progress=progress,
        )


class Model(CheckedModel):
    """A model that is called like a function; created by `Client.model`."""

    def __init__(self, client: "_Client", name: str, version: str, signature: Signature) -> None:
        super().__init__(name, version, signature)
        self._client = client

    def __call__(self, /, *values: Inputs, **named: Value) -> Any:
        """Returns the model's only output as an array, or a dict of arrays by name.

        Args:
            values: values in the order of the signature's inputs, or one mapping by input name.
            named: values by name, as keywords.

        Raises:
            InvalidRequestError: the inputs do not fit the signature; nothing was sent.
            ClientError: as from `Client.infer`.
        """
        return single_or_all(self.infer(placed(self.signature, values, named)))

    def infer(self, inputs: Inputs, **options: Unpack[ModelOptions]) -> dict[str, Array]:
        """Converts and checks the inputs (`arrays`), and calls `Client.infer`.

        Args:
            inputs: values by name, or the value of the model's only input.
            options: `outputs`, `timeout_s`, `request_id`, `artifact` and `accuracy`, as for
                `Client.infer`.
        """
        return self._client.infer(**self._request(inputs, options))

    def stream(self, inputs: Inputs, **options: Unpack[ModelOptions]) -> Iterator[Any]:
        """Yields each of any number of answers, as it comes: see `Client.stream`.

        Args:
            inputs: as for `infer`, converted and checked at once.
            options: as for `infer`; `timeout_s` is that of the whole call.

        Yields:
            The model's only output as an array, or a dict of arrays by name.
        """
        return map(single_or_all, self._client.stream(**self._request(inputs, options)))

    def classify(
        self,
        inputs: Inputs,
        *,
        top: int = 1,
        output: str = "",
        softmax: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> list[list[Classified]]:
        """Returns the labels and scores of the best classes of each row, the best first.

        Args:
            inputs: values by name, or the value of the model's only input; a sample without the
                batch axis is one row.
            top: number of classes a row.
            output: name of the output; empty for the one that has labels, or the model's only one.
            softmax: True if the output has logits, of which scores are made by softmax; False if it
                has probabilities. None decides: rows of non-negative numbers that sum to 1 are
                probabilities.
            options: as for `infer`, without `outputs`.

        Returns:
            For each row its classes, each with `label` (its index if the model has no labels) and
            `score`, a probability.

        Raises:
            InvalidRequestError: as `arrays`; the output is unknown or ambiguous.
            ClientError: as from `Client.infer`.
        """
        name = self._classes_output(output, top)
        return self._classified(name, self.infer(inputs, outputs=[name], **options), top, softmax)

    def map(
        self,
        rows: Iterable[Inputs],
        *,
        batch_size: int | None = None,
        in_flight: int = DEFAULT_IN_FLIGHT,
        progress: bool | None = None,
        **options: Unpack[ModelOptions],
    ) -> Iterator[Any]:
        """Runs the model on many rows, in batches, and yields the outputs of each row in order.

        Rows are read as they are needed: at most `in_flight` batches are ahead of the row that is
        yielded, so the iterable may be endless or larger than memory.

        Args:
            rows: for each row its values by name, or the value of the model's only input.
            batch_size: most rows of a batch; None for the model's largest batch, 256 at most. Rows
                of different shapes, or of more than 8 MiB, are not joined.
            in_flight: most batches that are sent at the same time, each in a thread.
            progress: True for a progress bar on standard error, False for none, None for one on a
                terminal or in a notebook.
            options: as for `infer`; `timeout_s` is that of a batch.

        Yields:
            The row of the model's only output, or a dict of rows by name; without the batch axis.

        Raises:
            ValueError: the batch size or the number in flight is out of range.
            ClientError: a row or a batch failed; the message has its index, counted from 0. The
                rows before it were yielded.
        """
        settings = self._row_map(batch_size, in_flight, progress)
        return settings.run(rows, lambda inputs: self.infer(inputs, **options))


class AsyncModel(CheckedModel):
    """Asyncio version of `Model`; created by `AsyncClient.model`."""

    def __init__(
        self, client: "_AsyncClient", name: str, version: str, signature: Signature
    ) -> None:
        super().__init__(name, version, signature)
        self._client = client

    async def __call__(self, /, *values: Inputs, **named: Value) -> Any:
        """Same as `Model.__call__`."""
        return single_or_all(await self.infer(placed(self.signature, values, named)))

    async def infer(self, inputs: Inputs, **options: Unpack[ModelOptions]) -> dict[str, Array]:
        """Same as `Model.infer`."""
        return await self._client.infer(**self._request(inputs, options))

    def stream(self, inputs: Inputs, **options: Unpack[ModelOptions]) -> AsyncIterator[Any]:
        """Same as `Model.stream`, as an async iterator."""
        answers = self._client.stream(**self._request(inputs, options))
        return (single_or_all(answer) async for answer in answers)

    async def classify(
        self,
        inputs: Inputs,
        *,
        top: int = 1,
        output: str = "",
        softmax: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> list[list[Classified]]:
        """Same as `Model.classify`."""
        name = self._classes_output(output, top)
        answer = await self.infer(inputs, outputs=[name], **options)
        return self._classified(name, answer, top, softmax)

    def map(
        self,
        rows: Iterable[Inputs] | AsyncIterable[Inputs],
        *,
        batch_size: int | None = None,
        in_flight: int = DEFAULT_IN_FLIGHT,
        progress: bool | None = None,
        **options: Unpack[ModelOptions],
    ) -> AsyncGenerator[Any, None]:
        """Same as `Model.map`, as an async iterator; rows may come from one too."""
        settings = self._row_map(batch_size, in_flight, progress)
        return settings.run_async(rows, lambda inputs: self.infer(inputs, **options))
