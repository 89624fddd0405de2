"""`flambeau.load`: a version of a store as a function, for tests and batch work."""

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from flambeau.calling.classes import Classified
from flambeau.calling.input_values import Inputs, Value, as_arrays, placed
from flambeau.errors import InvalidRequestError
from flambeau.local.server import Server, start
from flambeau.local.store_url import DEFAULT_STORE, store_url
from flambeau.wire import Array, single_or_all

ONE_VERSION = "services.standalone.one_version"
LARGEST_MESSAGE_BYTES = 2**30


class LoadedModel:
    """A version that runs in a process of ours; called like a function.

    The process ends with the block, with `close`, or with this process.

    Attributes:
        name: name of the model.
        version: number of the version.
        artifact: name of the artifact that runs.
        signature: names, datatypes and shapes of inputs and outputs.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        line = server.addresses.served[0]
        self.name, self.version, artifact = line.split()
        self.artifact = artifact.strip("()")
        self._client = server.client(max_message_bytes=LARGEST_MESSAGE_BYTES, timeout_s=600.0)
        self._model = self._client.model(self.name, self.version)
        self.signature = self._model.signature

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<flambeau model {self.name} {self.version} ({self.artifact})>"

    @property
    def pid(self) -> int:
        """The number of the process that runs it."""
        return self._server.pid

    def __call__(self, /, *values: Inputs, **named: Value) -> Any:
        """Returns the only output as an array, or a dict of arrays by name; see `infer`.

        Args:
            values: values in the order of the signature's inputs, or one mapping by input name.
            named: values by input name.
        """
        return single_or_all(self.infer(placed(self.signature, values, named)))

    def infer(self, inputs: Inputs, *, outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Runs any number of rows, in batches of the version's size.

        Args:
            inputs: values by input name, [rows, ...], or the value of the only input.
            outputs: names of the wanted outputs; none for all.

        Returns:
            Arrays by output name, [rows, ...].

        Raises:
            InvalidRequestError: the inputs do not fit the signature.
            ClientError: the model failed.
        """
        arrays = as_arrays(self.signature, inputs)
        rows = min((len(array) for array in arrays.values() if array.ndim), default=1)
        size = self.signature.max_batch_size
        if rows <= size or not self.signature.is_plain:  # one request is one run
            return self._model.infer(arrays, outputs=outputs)
        parts = [
            self._model.infer({n: a[at : at + size] for n, a in arrays.items()}, outputs=outputs)
            for at in range(0, rows, size)
        ]
        try:
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        except ValueError as error:
            raise InvalidRequestError(
                f"the answers to {rows} rows have different shapes; call with one row at a time"
            ) from error

    def classify(self, inputs: Inputs, *, top: int = 1) -> list[list[Classified]]:
        """Returns the best classes of each row with their labels; see `Model.classify`."""
        return self._model.classify(inputs, top=top)

    def close(self) -> None:
        """Ends the process."""
        self._client.close()
        self._server.stop()


def load(
    version: str,
    *,
    store: str | os.PathLike[str] = DEFAULT_STORE,
    artifact: str = "",
) -> LoadedModel:
    """Loads a version of a store, verified on this machine, in a process of ours.

        with flambeau.load("digits@production") as digits:
            logits = digits(image=images)

    Args:
        version: `digits` for the live version, or the newest if none is live; or `digits@` and a
            number, an alias or a range such as `^1.2`.
        store: the store: a folder, or the URL of a bucket.
        artifact: name of the artifact to run; empty for the fastest.

    Raises:
        ServerError: there is no such version, or no artifact of it can run here.
    """
    return LoadedModel(start(ONE_VERSION, store_url(store), version, artifact))
